// Runs and measures what bench-decode measures. The sequences of a run begin with some tokens and get a prompt;
// then all of them generate side by side.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/decode_loop.hpp"
#include "config/base/error.hpp"
#include "config/config.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/transformer.hpp"

namespace bulkhead::bench {

// The settings of the command line.
struct DecodePlan {
  std::string model = "builtin", device = "auto", json_path, cache_folder, kv_type = "f16";
  std::vector<std::uint32_t> streams, depths{0}, prompts;
  std::vector<std::string> assignments;
  std::uint32_t tokens = 0;
  std::uint32_t chunk = 0;   // 0: the values of engine.prefill_chunk and prefill_chunk_alone
  std::uint32_t widest = 0;  // columns of a step with prompts beside sequences that generate
  bool profile = false, baseline = false;
  double draft_accuracy = -1;  // less than 0: no speculation
  std::uint32_t check_pairs = 0;
};

struct DecodeRun {
  std::uint32_t streams = 1, depth = 0, prompt = 0;
};

// How many tokens a run needs room for in each stream.
struct DecodeRoom {
  std::uint32_t prompt = 0;  // the prompt and the tokens before it
  std::uint32_t length = 0;  // all of the stream's tokens
};
// room_of() shortens a prompt that leaves no room for the answer in the model's context. With guesses one stream may
// run ahead of another, so a run with guesses needs more room.
DecodeRoom room_of(const DecodePlan& plan, const DecodeRun& run, std::uint32_t context);

using Recorded = std::vector<std::vector<engine::TokenId>>;  // the tokens of each stream

class DecodeBench {
 public:
  // `bandwidth`: bytes that the device reads in a second; 0: unknown. The references must outlive the object.
  DecodeBench(forward::Transformer& executor, const DecodePlan& plan,
              const config::EngineSettings& engine, double bandwidth)
      : executor_(executor), plan_(plan), engine_(engine), bandwidth_(bandwidth) {}

  struct Run : DecodeRun {
    Pages pages = Pages::kForgotten;
  };
  // Prints a line and returns the figures. `recorded` gets the streams' tokens. With `guesses` the run speculates on
  // the guessed tokens, and it is an error if the streams then give other tokens.
  Result<nlohmann::json> measure(const Run& run, Recorded& recorded, const Recorded& guesses = {});
  // Measures plan.check_pairs pairs of runs, one run with checksums and one without, in the order AB BA AB BA. The
  // ratios in the result are rates with checks divided by rates without.
  Result<nlohmann::json> cost_of_checks(const DecodeRun& run);

 private:
  // The times of a run, in seconds.
  struct Times {
    double prefill = 0, decode = 0;
    std::vector<double> steps;  // times of decoding steps, in rising order
    std::uint64_t generated = 0;
    std::map<std::string, double> host;  // host_seconds() while decoding
  };
  Result<DecodeRoom> checked_room(const Run& run) const;
  Result<Times> time(DecodeLoop& loop, const Run& run, const DecodeRoom& room) const;
  nlohmann::json figures(const DecodeLoop& loop, const Run& run, const DecodeRoom& room,
                         const Times& times) const;
  Status profile(const DecodeLoop& loop, const DecodeRoom& room, nlohmann::json& result) const;

  forward::Transformer& executor_;
  const DecodePlan& plan_;
  const config::EngineSettings& engine_;
  const double bandwidth_;
};

}  // namespace bulkhead::bench
