// The journal holds, for each unfinished request, everything that is needed to continue it in another worker, and
// what its client has been sent. It is in the daemon's own memory. A token is appended here first and written to the
// client afterwards, so what the client saw is always a prefix of the journal.
//
// It uses no processes, channels or HTTP. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/strong_id.hpp"
#include "ipc/messages.hpp"

namespace bulkhead::orchestrator {

// What a request asks of a worker. All parameters are set (a Submit's seed is drawn before it comes here), so sending
// the same work twice gives the same answer.
using Work = ipc::Work;

struct JournalEntry {
  RequestId id;
  Work work;              // `request` is set; a Submit's accepted_tokens are empty
  bool accepted = false;  // a worker has answered with the prompt's ids
  std::vector<ipc::TokenId> prompt_tokens;
  std::size_t prompt_told = 0;       // how many of its tokens PromptTokens have reported
  std::uint32_t max_tokens = 0;      // as the worker determined it
  std::vector<ipc::TokenId> tokens;  // accepted tokens, in order
  std::string text;                  // the text of these tokens, including the text of parts
  std::size_t parts = 0;             // pieces in which the parts came
  std::uint32_t calls = 0;           // tool calls that have begun
  bool in_call = false;              // the last part belonged to a call
  std::string numerics_id;           // of the worker that made these tokens; empty before the first token
  std::string file_mark;             // of the model file with which they were made
  std::string made_by;  // identity of the earlier daemon's worker that began it; empty: our worker did

  std::uint32_t resubmissions = 0;
  bool handed_back = false;  // a worker that died had it, though the process may not have seen it
  std::size_t tokens_when_sent = 0;  // tokens.size() when it was last sent to a worker
};

class Journal {
 public:
  // Records a new request; the reference is valid until erase().
  JournalEntry& record(RequestId id, Work work);
  JournalEntry* find(RequestId id);
  const JournalEntry* find(RequestId id) const;
  void erase(RequestId id);
  std::size_t size() const { return entries_.size(); }
  // Returns the bytes of accepted tokens, their text and prompts' tokens in all entries.
  std::size_t bytes() const;

  // Records the worker's answer to a prompt. kCorrupt if it contradicts an earlier answer or the request.
  static Status accept(JournalEntry& entry, std::span<const ipc::TokenId> prompt_tokens,
                       std::uint32_t max_tokens, std::uint32_t context_limit);
  // Takes tokens of the prompt, for a client that asked for them. Returns how many of them a worker that died had
  // already reported. kCorrupt if they were not asked for, leave a gap, or have more alternatives than were asked
  // for.
  static Result<std::size_t> tell_prompt(JournalEntry& entry, const ipc::PromptTokens& told);
  // Returns whether the worker has reported every token of the prompt that was asked for.
  static bool prompt_is_told(const JournalEntry& entry);
  // Appends the next tokens. kCorrupt, with nothing changed, if they leave a gap, repeat tokens, exceed what was
  // asked for, or carry more text than tokens can.
  static Status append(JournalEntry& entry, std::uint32_t first_index,
                       std::span<const ipc::TokenId> tokens, std::string_view text,
                       std::span<const ipc::AnswerPart> parts = {});
  // Returns how many bytes an entry holds of the answer so far.
  static std::size_t answer_bytes(const JournalEntry& entry) {
    return entry.tokens.size() * sizeof(ipc::TokenId) + entry.text.size();
  }
  // Appends the text that was held back until the end.
  static Status append_rest(JournalEntry& entry, std::string_view text,
                            std::span<const ipc::AnswerPart> parts = {});
  // Adds text and parts that the journal on disk holds.
  static void restore(JournalEntry& entry, const ipc::SequenceTokens& tokens);

  // Returns the message that makes a worker begin, or continue after the accepted tokens.
  static ipc::ToWorker message(const JournalEntry& entry);

 private:
  std::unordered_map<RequestId, JournalEntry> entries_;
};

}  // namespace bulkhead::orchestrator
