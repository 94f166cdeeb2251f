// The engine's record of a request. Only for engine.cpp, engine_pooling.cpp and engine_requests.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/engine/engine.hpp"

namespace bulkhead::engine {

inline constexpr const char* kNotFinite =
    "the model's logits are not finite numbers; its weights may be damaged";

inline constexpr const char* kDraining = "this worker is being drained; try again";

struct Engine::Request : DraftedSequence {
  RequestId id;
  std::uint64_t ticket = 0;  // with the tokenizer's thread; 0: not there
  ipc::Sampling sampling;
  std::int32_t wanted_logprobs = -1;
  bool ignore_eos = false;
  bool tell_prompt = false;
  bool prompt_only = false;
  bool count_only = false;
  std::uint32_t told = 0;      // tokens of the prompt that were sent as PromptTokens
  bool pools = false;          // it is an Embed or a Rank job, and ends in Embedded or Ranked
  bool ranks = false;          // it is a Rank job
  bool truncates = false;      // it may be cut to the context
  std::vector<double> pooled;  // sum of pooled_count hidden states
  std::uint32_t pooled_count = 0;
  bool chat = false;
  std::uint32_t max_tokens = 0;   // first as requested, then resolved
  std::vector<TokenId> accepted;  // until start()
  std::uint32_t prompt_tokens = 0;
  std::uint32_t accepted_count = 0;  // generated before this worker got the request
  std::uint32_t generated = 0;       // in all, including accepted_count
  std::uint32_t delivered = 0;       // how many of those were sent
  TokenHistory history;
  TextStream text;
  std::unique_ptr<TokenConstraint> constraint;  // null: any token may come
  std::vector<ipc::TokenBias> bias;
  std::uint32_t device_edits = 0;  // the most that the device makes in a row of it
  std::vector<TokenId> stop_tokens;
  std::unique_ptr<AnswerReader> reader;  // for an answer that comes in parts
  bool cut_call = false;                 // a stop string ended the answer within a call
  ipc::SequenceTokens unsent;
  ipc::PromptTokens untold;
  std::uint32_t flush_tokens = 1;
  std::uint32_t most_unsent = 1;  // send at this number of unsent tokens, however many come at once
  bool any_sent = false;          // whether this worker has sent any
  ipc::Finished finished;
  bool computed_again = false;  // because its logits were not numbers
  bool started = false;
  Clock::time_point started_at, first_token_at;

  // Returns whether biases or penalties change the request's logits.
  bool edits_logits() const { return !bias.empty() || has_penalties(sampling); }
  // Returns whether the engine reports the prompt's tokens with log-probabilities, which the host computes.
  bool scores_prompt() const { return tell_prompt && wanted_logprobs >= 0; }
};

}  // namespace bulkhead::engine
