// The journal: for each unfinished request all that is needed to go on with it in another worker,
// and the proof, from the daemon's own memory, of what its client has been sent. A token is
// appended here first and written to the client afterwards, so that what the client saw is always a
// prefix of the journal.
//
// Knows nothing of workers' processes, channels or HTTP. One thread.
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

// What a request asks of a worker. Parameters are resolved (a Submit's seed is drawn before it
// comes here), so that sending the same work twice gives the same answer.
using Work = ipc::Work;

struct JournalEntry {
  RequestId id;
  Work work;              // `request` set; a Submit's accepted_tokens empty
  bool accepted = false;  // a worker answered with the prompt's ids
  std::vector<ipc::TokenId> prompt_tokens;
  std::size_t prompt_told = 0;       // of its tokens, by PromptTokens
  std::uint32_t max_tokens = 0;      // as the worker resolved it
  std::vector<ipc::TokenId> tokens;  // accepted tokens, in order
  std::string text;                  // the text they released, that of parts included
  std::size_t parts = 0;             // pieces in which they came
  std::uint32_t calls = 0;           // tool calls that have begun
  bool in_call = false;              // the last part was a call's
  std::string numerics_id;           // of the worker whose tokens these are; empty before the first
  std::string file_mark;             // of the model file that they were made with
  std::string made_by;  // identity of an earlier daemon's worker that began it; empty: ours did

  std::uint32_t resubmissions = 0;
  std::size_t tokens_when_sent = 0;  // tokens.size() when it last went to a worker
};

class Journal {
 public:
  // Records a request that is not there yet; the reference is valid until erase().
  JournalEntry& record(RequestId id, Work work);
  JournalEntry* find(RequestId id);
  const JournalEntry* find(RequestId id) const;
  void erase(RequestId id);
  std::size_t size() const { return entries_.size(); }
  // Of accepted tokens, their text and prompts' tokens, in all entries.
  std::size_t bytes() const;

  // The worker's answer to a prompt. kCorrupt when it contradicts an earlier answer or the request.
  static Status accept(JournalEntry& entry, std::span<const ipc::TokenId> prompt_tokens,
                       std::uint32_t max_tokens, std::uint32_t context_limit);
  // Takes tokens of the prompt, for a client that wants them. Returns how many of them a worker
  // that died had told already. kCorrupt if they were not asked for, leave a gap, or have more
  // alternatives than were asked for.
  static Result<std::size_t> tell_prompt(JournalEntry& entry, const ipc::PromptTokens& told);
  // Says whether the worker has told every token of the prompt that was asked for.
  static bool prompt_is_told(const JournalEntry& entry);
  // The next tokens. kCorrupt, with nothing changed, when they leave a gap, repeat, exceed what was
  // asked, or carry more text than tokens can.
  static Status append(JournalEntry& entry, std::uint32_t first_index,
                       std::span<const ipc::TokenId> tokens, std::string_view text,
                       std::span<const ipc::AnswerPart> parts = {});
  // What an entry holds of the answer so far.
  static std::size_t answer_bytes(const JournalEntry& entry) {
    return entry.tokens.size() * sizeof(ipc::TokenId) + entry.text.size();
  }
  // The text that was held back until the end.
  static Status append_rest(JournalEntry& entry, std::string_view text,
                            std::span<const ipc::AnswerPart> parts = {});
  // Adds text and parts that a journal on disk holds.
  static void restore(JournalEntry& entry, const ipc::SequenceTokens& tokens);

  // The message that makes a worker begin, or go on after the accepted tokens.
  static ipc::ToWorker message(const JournalEntry& entry);

 private:
  std::unordered_map<RequestId, JournalEntry> entries_;
};

}  // namespace bulkhead::orchestrator
