// Measures the cost of masks. The program writes texts token by token, and times each step's mask and advance: CPU
// time, one core, no model. The texts are the valid instances of each schema of a folder, or (`--calls`) answers that
// call tools, in the notation of a family with tags.
//
// Figures: time from a schema's text to its first mask; p50, p99 and the largest of all masks after it.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/constrain_calls.hpp"
#include "bench/program.hpp"
#include "bench/report.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/constrain/token_masks.hpp"
#include "worker/engine/call_grammar.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Plan {
  std::string model = "builtin";
  std::string schemas;
  std::string calls;
  int tools = 24;
  std::string json_path;
};

struct Figures {
  std::vector<double> first_us, mask_us;
  std::size_t refused = 0, tokens = 0, rejected = 0;
  std::uint64_t most_work = 0;  // frames looked at for one mask
};

// Returns this thread's CPU time: on a busy machine, wall time would depend on other programs.
double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

double part_of(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

struct Vocabulary {
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::shared_ptr<constrain::TokenTrie> trie;
  std::vector<std::uint32_t> ends;
};

Result<Vocabulary> vocabulary(const std::string& path) {
  BULKHEAD_TRY(const auto file, model::GgufFile::open(path));
  Vocabulary out;
  BULKHEAD_TRY(out.tokenizer, model::Tokenizer::from_gguf(*file));
  std::vector<std::string_view> pieces;
  for (std::uint32_t id = 0; id < out.tokenizer->size(); ++id) {
    const bool ends = out.tokenizer->ends_generation(id);
    pieces.push_back(ends ? std::string_view() : out.tokenizer->piece(id));
    if (ends) out.ends.push_back(id);
  }
  out.trie = std::make_shared<constrain::TokenTrie>(pieces);
  return out;
}

// Writes the texts with masks of the grammar, which was begun at `begin`.
void write_texts(const std::shared_ptr<const constrain::Grammar>& grammar, double begin,
                 const std::vector<std::string>& texts, const Vocabulary& words, Figures& figures) {
  constrain::TokenMasks masks(grammar, words.trie, words.ends);
  masks.mask(masks.start());
  figures.most_work = std::max(figures.most_work, masks.last_work());
  figures.first_us.push_back(cpu_us() - begin);
  for (const std::string& text : texts) {
    constrain::ConfigId at = masks.start();
    for (const std::uint32_t token : words.tokenizer->encode(text, false, false)) {
      const double step = cpu_us();
      const bool allowed = constrain::allows(*masks.mask(at), token);
      const constrain::ConfigId next = masks.advance(at, words.tokenizer->piece(token));
      figures.mask_us.push_back(cpu_us() - step);
      figures.most_work = std::max(figures.most_work, masks.last_work());
      ++figures.tokens;
      if (!allowed || next == constrain::kNowhere) {  // the instance has its properties in another order
        ++figures.rejected;
        break;
      }
      at = next;
    }
  }
}

void write_instances(const Json& fixture, const Vocabulary& words, Figures& figures) {
  const std::string schema = fixture["schema"].dump();
  std::vector<std::string> texts;
  for (const Json& value : fixture["valid"])
    texts.push_back(value.dump(1));
  const double begin = cpu_us();
  const auto compiled = constrain::compile_schema(schema, constrain::Strictness::kStrict);
  if (!compiled.ok()) {
    ++figures.refused;
    return;
  }
  write_texts(compiled->grammar, begin, texts, words, figures);
}

Status write_calls(const Plan& plan, const Vocabulary& words, Figures& figures) {
  const model::answer::Family* family = model::answer::family_named(plan.calls);
  if (family == nullptr || !has_tagged_answers(family->calls))
    return Error(ErrorCode::kNotFound, "no family \"" + plan.calls + "\" with calls in plain tags");
  const std::string tools = tagged_tools(plan.tools);
  const auto texts = tagged_answers(family->calls);
  const double begin = cpu_us();
  BULKHEAD_TRY(const engine::CallGrammar made,
               engine::make_call_grammar(*family, {.tools = tools},
                                         [](std::string_view mark) { return std::string(mark); }));
  write_texts(made.grammar, begin, texts, words, figures);
  return {};
}

Status write_schemas(const Plan& plan, const Vocabulary& words, Figures& figures) {
  std::vector<std::filesystem::path> files;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(plan.schemas, code)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (files.empty()) {
    return Error(ErrorCode::kNotFound,
                 "no schemas in \"" + plan.schemas + "\"; name a folder with --schemas");
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream file(path);
    const Json fixture = Json::parse(file, nullptr, false);
    if (!fixture.is_object() || !fixture.contains("schema") || !fixture.contains("valid")) continue;
    write_instances(fixture, words, figures);
  }
  return {};
}

Status run(const Plan& plan) {
  BULKHEAD_TRY(const Vocabulary words, vocabulary(plan.model));
  Figures figures;
  BULKHEAD_RETURN_IF_ERROR(plan.calls.empty() ? write_schemas(plan, words, figures)
                                              : write_calls(plan, words, figures));
  const nlohmann::json result = {
      {"name", "masks"},
      {"vocabulary", words.tokenizer->size()},
      {"schemas", figures.first_us.size()},
      {"refused", figures.refused},
      {"tokens", figures.tokens},
      {"in_another_order", figures.rejected},
      {"first_mask_p50_us", part_of(figures.first_us, 0.5)},
      {"first_mask_max_us", part_of(figures.first_us, 1)},
      {"p50_us", part_of(figures.mask_us, 0.5)},
      {"p99_us", part_of(figures.mask_us, 0.99)},
      {"max_us", part_of(figures.mask_us, 1)},
      {"most_frames", figures.most_work},
  };
  std::printf("%s\n", result.dump(1).c_str());
  return write_report(plan.json_path, {{"results", {result}}});
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
  using namespace bulkhead;
  bench::Plan plan;
  ProgramOptions options{"Times the masks that hold an answer to a schema"};
  options.add("--model", plan.model, "GGUF file (one with only a vocabulary will do)")
      .show_default();
  options.add("--schemas", plan.schemas, "folder of schemas with valid instances");
  options.add("--calls", plan.calls,
              "time calls in this family's notation instead (qwen3-coder, glm, ...)");
  options.add("--tools", plan.tools, "tools that the calls may be of").show_default();
  bench::add_json_option(options, plan);
  if (const auto code = options.parse(argc, argv)) return *code;
  return bench::run_program("bench-constrain", [&] { return bench::run(plan); });
}
