#include "orchestrator/journal/journal.hpp"

#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::orchestrator {

namespace {

// No vocabulary has longer tokens. Without a bound a worker could fill the daemon's memory with text.
constexpr std::size_t kMaxTextBytesPerToken = 1024;
constexpr std::size_t kMaxExtraTextBytes = 4096;
constexpr std::size_t kBytesPerPart = 64;  // counted for each part besides its text, which may be empty

// Returns how many tokens a prompt can become at most. A byte of text is one token, or several where a space is
// written as another character; a template adds its own text. So the size of a client's request bounds what is kept.
std::size_t most_prompt_tokens(const ipc::Submit& submit) {
  constexpr std::size_t kPerByte = 4, kSpecial = 64, kTemplate = 16384, kTemplatePerMessage = 1024;
  if (const auto* text = std::get_if<std::string>(&submit.prompt))
    return text->size() * kPerByte + kSpecial;
  if (const auto* ids = std::get_if<std::vector<ipc::TokenId>>(&submit.prompt))
    return ids->size() + kSpecial;
  // A message takes at least some 25 bytes of JSON; a tool takes more.
  if (const auto* chat = std::get_if<ipc::ChatPrompt>(&submit.prompt))
    return 4 * kTemplate + chat->json.size() * (kPerByte + kTemplatePerMessage / 25);
  if (const auto* infill = std::get_if<ipc::InfillPrompt>(&submit.prompt)) {
    std::size_t most = (infill->prefix.size() + infill->suffix.size()) * kPerByte + kSpecial;
    for (const ipc::InfillFile& file : infill->files)
      most += (file.name.size() + file.text.size()) * kPerByte + kSpecial;
    return most;
  }
  std::size_t most = kTemplate;
  for (const auto& message : std::get<std::vector<ipc::ChatMessage>>(submit.prompt))
    most += (message.role.size() + message.content.size()) * kPerByte + kTemplatePerMessage;
  return most;
}

Status check_text(const JournalEntry& entry, std::size_t tokens, std::size_t more_bytes) {
  const std::size_t bytes = entry.text.size() + entry.parts * kBytesPerPart + more_bytes;
  if (bytes > kMaxExtraTextBytes + tokens * kMaxTextBytesPerToken) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("request {}: {} tokens can't carry {} bytes of text", entry.id.value,
                             tokens, bytes));
  }
  return {};
}

bool is_of_call(const ipc::AnswerPart& part) {
  return part.kind == ipc::PartKind::kCall || part.kind == ipc::PartKind::kArguments;
}

// Checks an answer's parts: only chats have parts, and then no plain text; calls are counted from 0, and arguments
// follow the part that began their call.
Status check_parts(const JournalEntry& entry, std::string_view text,
                   std::span<const ipc::AnswerPart> parts) {
  if (parts.empty()) return {};
  const auto wrong = [&entry](const char* what) {
    return Error(ErrorCode::kCorrupt, fmt::format("request {}: {}", entry.id.value, what));
  };
  const auto* submit = std::get_if<ipc::Submit>(&entry.work);
  if (submit == nullptr || !std::holds_alternative<ipc::ChatPrompt>(submit->prompt))
    return wrong("an answer in parts to what is no chat");
  if (!text.empty()) return wrong("an answer in parts and as text at once");
  std::uint32_t calls = entry.calls;
  bool in_call = entry.in_call;
  for (const ipc::AnswerPart& part : parts) {
    if (part.kind == ipc::PartKind::kCall) ++calls;
    if (part.kind == ipc::PartKind::kArguments && !in_call)
      return wrong("arguments that follow no tool call");
    in_call = is_of_call(part);
    if (in_call && part.call != calls - 1)
      return wrong("a part of another tool call than the last one");
  }
  return {};
}

std::size_t bytes_of(std::span<const ipc::AnswerPart> parts) {
  std::size_t bytes = parts.size() * kBytesPerPart;
  for (const ipc::AnswerPart& part : parts)
    bytes += part.text.size() + part.id.size();
  return bytes;
}

void keep(JournalEntry& entry, std::string_view text, std::span<const ipc::AnswerPart> parts) {
  entry.text.append(text);
  entry.parts += parts.size();
  for (const ipc::AnswerPart& part : parts) {
    entry.text += part.text;
    entry.text += part.id;
    entry.calls += part.kind == ipc::PartKind::kCall ? 1 : 0;
    entry.in_call = is_of_call(part);
  }
}

}  // namespace

JournalEntry& Journal::record(RequestId id, Work work) {
  JournalEntry& entry = entries_[id];
  entry.id = id;
  entry.work = std::move(work);
  std::visit([id](auto& message) { message.request = id; }, entry.work);
  return entry;
}

JournalEntry* Journal::find(RequestId id) {
  auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

const JournalEntry* Journal::find(RequestId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

void Journal::erase(RequestId id) {
  entries_.erase(id);
}

std::size_t Journal::bytes() const {
  std::size_t all = 0;
  for (const auto& [id, entry] : entries_)
    all += answer_bytes(entry) + entry.prompt_tokens.size() * sizeof(ipc::TokenId);
  return all;
}

Status Journal::accept(JournalEntry& entry, std::span<const ipc::TokenId> prompt_tokens,
                       std::uint32_t max_tokens, std::uint32_t context_limit) {
  const auto* submit = std::get_if<ipc::Submit>(&entry.work);
  if (submit == nullptr) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("request {} is not a generation, but was accepted", entry.id.value));
  }
  if (prompt_tokens.size() > context_limit || max_tokens > context_limit ||
      (submit->max_tokens != 0 && max_tokens > submit->max_tokens)) {
    return Error(ErrorCode::kCorrupt, fmt::format("request {} was accepted with {} prompt tokens "
                                                  "and {} to generate, beyond what was asked "
                                                  "({}) or the context ({})",
                                                  entry.id.value, prompt_tokens.size(), max_tokens,
                                                  submit->max_tokens, context_limit));
  }
  if (prompt_tokens.size() > most_prompt_tokens(*submit)) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("request {} was accepted with {} prompt tokens, and its prompt can't "
                             "become more than {}",
                             entry.id.value, prompt_tokens.size(), most_prompt_tokens(*submit)));
  }
  if (entry.accepted) {
    // The limit stays what the client was promised. A successor with a smaller context says so when it reaches that
    // limit.
    if (!std::ranges::equal(entry.prompt_tokens, prompt_tokens)) {
      return Error(
          ErrorCode::kCorrupt,
          fmt::format("request {} was accepted again with other prompt tokens", entry.id.value));
    }
    return {};
  }
  entry.accepted = true;
  entry.prompt_tokens.assign(prompt_tokens.begin(), prompt_tokens.end());
  entry.max_tokens = max_tokens;
  return {};
}

Status Journal::append(JournalEntry& entry, std::uint32_t first_index,
                       std::span<const ipc::TokenId> tokens, std::string_view text,
                       std::span<const ipc::AnswerPart> parts) {
  if (!entry.accepted) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("tokens of request {} before it was accepted", entry.id.value));
  }
  if (first_index != entry.tokens.size()) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("tokens of request {} from index {}, but {} are next", entry.id.value,
                             first_index, entry.tokens.size()));
  }
  if (tokens.size() > entry.max_tokens - entry.tokens.size()) {
    return Error(ErrorCode::kCorrupt, fmt::format("request {} got more than its {} tokens",
                                                  entry.id.value, entry.max_tokens));
  }
  BULKHEAD_RETURN_IF_ERROR(
      check_text(entry, entry.tokens.size() + tokens.size(), text.size() + bytes_of(parts)));
  BULKHEAD_RETURN_IF_ERROR(check_parts(entry, text, parts));
  if (!prompt_is_told(entry)) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("tokens of request {} before those of its prompt", entry.id.value));
  }
  entry.tokens.insert(entry.tokens.end(), tokens.begin(), tokens.end());
  keep(entry, text, parts);
  return {};
}

Result<std::size_t> Journal::tell_prompt(JournalEntry& entry, const ipc::PromptTokens& told) {
  const auto wrong = [&entry](const char* what) {
    return Error(ErrorCode::kCorrupt, fmt::format("request {}: {}", entry.id.value, what));
  };
  const auto* submit = std::get_if<ipc::Submit>(&entry.work);
  if (submit == nullptr || !submit->tell_prompt) return wrong("a prompt that nobody asked for");
  if (!entry.accepted) return wrong("a prompt's tokens before it was accepted");
  const std::size_t size = entry.prompt_tokens.size();
  if (told.first_index > entry.prompt_told || told.first_index > size ||
      told.tokens.size() > size - told.first_index)
    return wrong("tokens of a prompt that leave a gap, or are more than it has");
  std::size_t bytes = 0;
  for (const ipc::TokenLogprob& token : told.tokens) {
    bytes += token.bytes.size();
    if (token.top.size() > static_cast<std::size_t>(submit->logprobs + 1))
      return wrong("more log-probabilities than were asked for");
  }
  if (bytes > kMaxExtraTextBytes + told.tokens.size() * kMaxTextBytesPerToken)
    return wrong("tokens of a prompt with more text than tokens can carry");
  const std::size_t known = std::min(entry.prompt_told - told.first_index, told.tokens.size());
  entry.prompt_told = std::max(entry.prompt_told, told.first_index + told.tokens.size());
  return known;
}

bool Journal::prompt_is_told(const JournalEntry& entry) {
  const auto* submit = std::get_if<ipc::Submit>(&entry.work);
  return submit == nullptr || !submit->tell_prompt ||
         entry.prompt_told == entry.prompt_tokens.size();
}

Status Journal::append_rest(JournalEntry& entry, std::string_view text,
                            std::span<const ipc::AnswerPart> parts) {
  BULKHEAD_RETURN_IF_ERROR(check_text(entry, entry.tokens.size(), text.size() + bytes_of(parts)));
  BULKHEAD_RETURN_IF_ERROR(check_parts(entry, text, parts));
  keep(entry, text, parts);
  return {};
}

void Journal::restore(JournalEntry& entry, const ipc::SequenceTokens& tokens) {
  entry.tokens.insert(entry.tokens.end(), tokens.tokens.begin(), tokens.tokens.end());
  keep(entry, tokens.text, tokens.parts);
}

ipc::ToWorker Journal::message(const JournalEntry& entry) {
  return std::visit(
      [&entry](const auto& work) -> ipc::ToWorker {
        auto message = work;
        if constexpr (std::is_same_v<decltype(message), ipc::Submit>) {
          message.accepted_tokens = entry.tokens;
          message.tell_prompt &= !entry.accepted || !prompt_is_told(entry);
        }
        return message;
      },
      entry.work);
}

}  // namespace bulkhead::orchestrator
