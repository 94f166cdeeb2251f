#include "worker/engine/infill.hpp"

#include <algorithm>
#include <string_view>

namespace bulkhead::engine {
namespace {

struct Marks {
  std::string_view prefix, suffix, middle;
  std::string_view file = {};  // the mark before another file's name; empty: the model has none
};
// The marks of Qwen 2.5 Coder and later, StarCoder and Granite, DeepSeek, Code Llama, and GLM.
constexpr Marks kMarks[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
    {"▁<PRE>", "▁<SUF>", "▁<MID>"},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
};

bool is_token(const model::Tokenizer& tokenizer, std::string_view mark) {
  return tokenizer.encode(mark, false, true).size() == 1;
}

}  // namespace

Result<std::vector<model::TokenId>> infill_prompt(const model::Tokenizer& tokenizer,
                                                  const ipc::InfillPrompt& request) {
  const auto marks = std::ranges::find_if(kMarks, [&](const Marks& each) {
    return is_token(tokenizer, each.prefix) && is_token(tokenizer, each.suffix) &&
           is_token(tokenizer, each.middle);
  });
  if (marks == std::end(kMarks)) {
    return Error(ErrorCode::kUnsupported,
                 "the model's vocabulary has no tokens for filling in, such as <|fim_prefix|>: it "
                 "was not trained for that");
  }
  const bool marks_files = !marks->file.empty() && is_token(tokenizer, marks->file);
  std::vector<model::Segment> segments;
  for (const ipc::InfillFile& file : request.files) {
    if (marks_files) segments.push_back({marks->file, true});
    segments.push_back({file.name, false});
    segments.push_back({"\n", false});
    segments.push_back({file.text, false});
    if (!marks_files) segments.push_back({"\n\n", false});
  }
  // The file with the gap begins like the other files.
  if (marks_files && !request.files.empty()) segments.push_back({marks->file, true});
  segments.push_back({marks->prefix, true});
  segments.push_back({request.prefix, false});
  segments.push_back({marks->suffix, true});
  segments.push_back({request.suffix, false});
  segments.push_back({marks->middle, true});
  return tokenizer.encode(segments, true);
}

}  // namespace bulkhead::engine
