// Reading messages that a hostile process may have written.
//
// The record is private memory by now: nobody changes it under us. Cap'n Proto checks every pointer
// against it; the traversal limit stops pointers that overlap to make a small record look huge, the
// nesting limit stops deep ones. What Cap'n Proto leaves to us: that a list's elements had room in
// the record (a byte list may be read as a list of structs, and then a byte of wire would become a
// hundred of heap), enumerators, directions, and UTF-8.
#include <cstring>
#include <limits>

#include <capnp/any.h>
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include "ipc/messages.capnp.h"
#include "ipc/messages.hpp"
#include "ipc/utf8.hpp"

namespace bulkhead::ipc {
namespace {

constexpr int kNestingLimit = 16;  // the deepest message, a top log-probability's bytes, takes 9

// Thrown and caught in this file only, beside Cap'n Proto's own exceptions.
struct Violation {
  std::string what;
};

enum class Texts { kMustBeUtf8, kAnyBytes };

// One record being read.
class Decoder {
 public:
  Decoder(std::span<const std::byte> record, Texts texts)
      : record_bytes_(record.size()),
        texts_(texts),
        segment_(reinterpret_cast<const capnp::word*>(record.data()), record.size() / 8),
        reader_(kj::arrayPtr(&segment_, 1), options(record.size() / 8)) {}

  wire::Message::Reader root() { return reader_.getRoot<wire::Message>(); }

  std::string text(capnp::Text::Reader value, const char* field) const {
    const std::string_view view(value.begin(), value.size());
    if (texts_ == Texts::kMustBeUtf8) require_utf8(view, field);
    return std::string(view);
  }
  static void require_utf8(std::string_view view, const char* field) {
    const std::size_t valid = valid_utf8_prefix(view);
    if (valid != view.size()) {
      throw Violation{std::string(field) + " is not UTF-8 at byte " + std::to_string(valid)};
    }
  }
  static std::string_view bytes(capnp::Data::Reader value) {
    return {reinterpret_cast<const char*>(value.begin()), value.size()};
  }

  // A list of 4-byte elements as it lies in the record.
  template <typename T>
  std::span<const T> four_byte_list(capnp::AnyList::Reader list, const char* field) const {
    if (list.size() == 0) return {};
    const auto raw = list.getRawBytes();
    if (list.getElementSize() != capnp::ElementSize::FOUR_BYTES ||
        raw.size() != std::size_t{list.size()} * sizeof(T)) {
      throw Violation{std::string(field) + " is not a list of 4-byte elements"};
    }
    return {reinterpret_cast<const T*>(raw.begin()), list.size()};
  }
  template <typename T, typename List>
  std::vector<T> copied(List list, const char* field) const {
    const auto view = four_byte_list<T>(capnp::AnyList::Reader(list), field);
    return std::vector<T>(view.begin(), view.end());
  }

  // Refuses a list of more structs than the record has room for.
  template <typename Wire>
  void require_room(const typename capnp::List<Wire>::Reader& list, const char* field) const {
    if (std::uint64_t{list.size()} * capnp::sizeInWords<Wire>() * 8 > record_bytes_) {
      throw Violation{std::string(field) + " claims " + std::to_string(list.size()) +
                      " elements in a record of " + std::to_string(record_bytes_) + " bytes"};
    }
  }
  void require_pointers(std::size_t count, const char* field) const {
    if (count * 8 > record_bytes_) {
      throw Violation{std::string(field) + " claims " + std::to_string(count) +
                      " elements in a record of " + std::to_string(record_bytes_) + " bytes"};
    }
  }

 private:
  static capnp::ReaderOptions options(std::size_t record_words) {
    capnp::ReaderOptions options;
    options.traversalLimitInWords = record_words * 2 + 64;  // each object is read once; some twice
    options.nestingLimit = kNestingLimit;
    return options;
  }

  std::size_t record_bytes_;
  Texts texts_;
  kj::ArrayPtr<const capnp::word> segment_;
  capnp::SegmentArrayMessageReader reader_;
};

// Runs `read` on the record; whatever it throws becomes kCorrupt.
template <typename T, typename Read>
Result<T> guarded(std::span<const std::byte> record, Texts texts, Read read) {
  if (reinterpret_cast<std::uintptr_t>(record.data()) % 8 != 0) {
    return Error(ErrorCode::kInvalidArgument, "decode: the record is not 8-byte aligned");
  }
  if (record.size() < 16 || record.size() % 8 != 0) {
    return Error(ErrorCode::kCorrupt, "message: a record of " + std::to_string(record.size()) +
                                          " bytes is no whole message");
  }
  try {
    Decoder decoder(record, texts);
    return read(decoder);
  } catch (const Violation& violation) {
    return Error(ErrorCode::kCorrupt, "message: " + violation.what);
  } catch (const kj::Exception& e) {
    return Error(ErrorCode::kCorrupt, std::string("message: ") + e.getDescription().cStr());
  } catch (const std::exception& e) {
    return Error(ErrorCode::kCorrupt, std::string("message: ") + e.what());
  }
}

FinishReason finish_reason(wire::FinishReason value) {
  switch (value) {
    case wire::FinishReason::STOP:
      return FinishReason::kStop;
    case wire::FinishReason::LENGTH:
      return FinishReason::kLength;
    case wire::FinishReason::CANCELLED:
      return FinishReason::kCancelled;
  }
  throw Violation{"unknown finish reason " + std::to_string(static_cast<unsigned>(value))};
}

FailureCode failure_code(wire::FailureCode value) {
  switch (value) {
    case wire::FailureCode::INVALID_REQUEST:
      return FailureCode::kInvalidRequest;
    case wire::FailureCode::CONTEXT_EXCEEDED:
      return FailureCode::kContextExceeded;
    case wire::FailureCode::UNSUPPORTED:
      return FailureCode::kUnsupported;
    case wire::FailureCode::RESOURCE_EXHAUSTED:
      return FailureCode::kResourceExhausted;
    case wire::FailureCode::INTERNAL:
      return FailureCode::kInternal;
  }
  throw Violation{"unknown failure code " + std::to_string(static_cast<unsigned>(value))};
}

VaultState vault_state(wire::VaultState value) {
  switch (value) {
    case wire::VaultState::OFF:
      return VaultState::kOff;
    case wire::VaultState::KEPT:
      return VaultState::kKept;
    case wire::VaultState::IMPORTED:
      return VaultState::kImported;
    case wire::VaultState::WAITING:
      return VaultState::kWaiting;
  }
  throw Violation{"unknown state of a vault " + std::to_string(static_cast<unsigned>(value))};
}

// ---- worker -> daemon ----

Ready read_ready(const Decoder& d, wire::Ready::Reader r) {
  Ready m;
  m.model_name = d.text(r.getModelName(), "ready.modelName");
  m.architecture = d.text(r.getArchitecture(), "ready.architecture");
  m.device = d.text(r.getDevice(), "ready.device");
  m.numerics_id = d.text(r.getNumericsId(), "ready.numericsId");
  m.context_limit = r.getContextLimit();
  m.vocabulary_size = r.getVocabularySize();
  m.kv_cache_tokens = r.getKvCacheTokens();
  m.weight_bytes = r.getWeightBytes();
  m.load_milliseconds = r.getLoadMilliseconds();
  m.has_chat_template = r.getHasChatTemplate();
  m.chat_template = d.text(r.getChatTemplate(), "ready.chatTemplate");
  const auto list = r.getOptimizations();
  d.require_room<wire::Optimization>(list, "ready.optimizations");
  m.optimizations.reserve(list.size());
  for (const auto o : list) {
    m.optimizations.push_back({d.text(o.getName(), "optimization.name"), o.getActive(),
                               d.text(o.getReason(), "optimization.reason")});
  }
  const auto vault = r.getVault();
  m.vault.state = vault_state(vault.getState());
  m.vault.reason = d.text(vault.getReason(), "vault.reason");
  m.vault.import_microseconds = vault.getImportMicroseconds();
  m.vault.check_microseconds = vault.getCheckMicroseconds();
  m.vault.adopt_microseconds = vault.getAdoptMicroseconds();
  m.vault.pages_adopted = vault.getPagesAdopted();
  m.vault.pages_withheld = vault.getPagesWithheld();
  return m;
}

// What TokenBatch and its view share: one sequence, checked.
SequenceTokensView read_sequence(const Decoder& d, wire::SequenceTokens::Reader s) {
  SequenceTokensView view;
  view.request = RequestId{s.getRequest()};
  view.first_index = s.getFirstIndex();
  view.tokens = d.four_byte_list<TokenId>(capnp::AnyList::Reader(s.getTokens()), "tokens");
  if (view.tokens.size() > std::numeric_limits<std::uint32_t>::max() - view.first_index) {
    throw Violation{"tokens: the index of the last one does not fit in 32 bits"};
  }
  view.text = Decoder::bytes(s.getText());
  Decoder::require_utf8(view.text, "tokens.text");
  const auto logprobs = s.getLogprobs();
  d.require_room<wire::TokenLogprob>(logprobs, "tokens.logprobs");
  if (logprobs.size() != 0 && logprobs.size() != view.tokens.size()) {
    throw Violation{"tokens: " + std::to_string(logprobs.size()) + " log-probabilities for " +
                    std::to_string(view.tokens.size()) + " tokens"};
  }
  view.logprob_count = logprobs.size();
  return view;
}

TokenBatch read_tokens(const Decoder& d, wire::TokenBatch::Reader r) {
  TokenBatch m;
  m.step = r.getStep();
  const auto sequences = r.getSequences();
  d.require_room<wire::SequenceTokens>(sequences, "tokens.sequences");
  m.sequences.reserve(sequences.size());
  for (const auto s : sequences) {
    const SequenceTokensView view = read_sequence(d, s);
    SequenceTokens& sequence = m.sequences.emplace_back();
    sequence.request = view.request;
    sequence.first_index = view.first_index;
    sequence.tokens.assign(view.tokens.begin(), view.tokens.end());
    sequence.text = view.text;
    if (view.logprob_count == 0) continue;
    sequence.logprobs.reserve(view.logprob_count);
    for (const auto l : s.getLogprobs()) {
      TokenLogprob& logprob = sequence.logprobs.emplace_back();
      logprob.logprob = l.getLogprob();
      logprob.bytes = Decoder::bytes(l.getBytes());
      const auto top = l.getTop();
      d.require_room<wire::TopLogprob>(top, "tokens.logprobs.top");
      logprob.top.reserve(top.size());
      for (const auto t : top) {
        logprob.top.push_back(
            {t.getToken(), t.getLogprob(), std::string(Decoder::bytes(t.getBytes()))});
      }
    }
  }
  return m;
}

Finished read_finished(wire::Finished::Reader r) {
  Finished m;
  m.request = RequestId{r.getRequest()};
  m.reason = finish_reason(r.getReason());
  m.text = Decoder::bytes(r.getText());
  Decoder::require_utf8(m.text, "finished.text");
  m.prompt_tokens = r.getPromptTokens();
  m.completion_tokens = r.getCompletionTokens();
  m.prefill_microseconds = r.getPrefillMicroseconds();
  m.decode_microseconds = r.getDecodeMicroseconds();
  m.cached_tokens = r.getCachedTokens();
  return m;
}

Stats read_stats(const Decoder& d, wire::Stats::Reader r) {
  Stats m;
  m.steps = r.getSteps();
  m.active_sequences = r.getActiveSequences();
  m.waiting_sequences = r.getWaitingSequences();
  m.kv_pages_used = r.getKvPagesUsed();
  m.kv_pages_total = r.getKvPagesTotal();
  const auto list = r.getCounters();
  d.require_room<wire::Counter>(list, "stats.counters");
  m.counters.reserve(list.size());
  for (const auto c : list) {
    m.counters.push_back({d.text(c.getName(), "counter.name"), c.getValue()});
  }
  return m;
}

FromWorker read_from_worker(Decoder& d) {
  const auto message = d.root();
  switch (message.which()) {
    case wire::Message::HELLO: {
      const auto r = message.getHello();
      return Hello{r.getProtocol(), r.getPid(), d.text(r.getBuild(), "hello.build")};
    }
    case wire::Message::PROGRESS: {
      const auto r = message.getProgress();
      return Progress{d.text(r.getStage(), "progress.stage"), r.getDone(), r.getTotal()};
    }
    case wire::Message::READY:
      return read_ready(d, message.getReady());
    case wire::Message::ACCEPTED: {
      const auto r = message.getAccepted();
      return Accepted{RequestId{r.getRequest()},
                      d.copied<TokenId>(r.getPromptTokens(), "accepted.promptTokens"),
                      r.getMaxTokens()};
    }
    case wire::Message::TOKENS:
      return read_tokens(d, message.getTokens());
    case wire::Message::FINISHED:
      return read_finished(message.getFinished());
    case wire::Message::FAILED: {
      const auto r = message.getFailed();
      return Failed{RequestId{r.getRequest()}, failure_code(r.getCode()),
                    d.text(r.getMessage(), "failed.message"),
                    d.text(r.getParameter(), "failed.parameter")};
    }
    case wire::Message::TOKENIZED: {
      const auto r = message.getTokenized();
      return Tokenized{RequestId{r.getRequest()},
                       d.copied<TokenId>(r.getTokens(), "tokenized.tokens")};
    }
    case wire::Message::DETOKENIZED: {
      const auto r = message.getDetokenized();
      return Detokenized{RequestId{r.getRequest()}, std::string(Decoder::bytes(r.getText()))};
    }
    case wire::Message::EMBEDDED: {
      const auto r = message.getEmbedded();
      return Embedded{RequestId{r.getRequest()}, d.copied<float>(r.getValues(), "embedded.values")};
    }
    case wire::Message::STATS:
      return read_stats(d, message.getStats());
    case wire::Message::PONG:
      return Pong{message.getPong().getNonce()};
    case wire::Message::FATAL:
      return Fatal{d.text(message.getFatal().getMessage(), "fatal.message")};
    case wire::Message::DRAINED:
      return Drained{};
    case wire::Message::VAULT_OFFER: {
      const auto r = message.getVaultOffer();
      return VaultOffer{r.getEpoch(), r.getFiles(), r.getBlocks()};
    }
    default:
      break;
  }
  throw Violation{"kind " + std::to_string(static_cast<unsigned>(message.which())) +
                  " is none that a worker may send"};
}

// ---- daemon -> worker ----

Submit read_submit(const Decoder& d, wire::Submit::Reader r) {
  Submit m;
  m.request = RequestId{r.getRequest()};
  const auto prompt = r.getPrompt();
  switch (prompt.which()) {
    case wire::Submit::Prompt::TEXT:
      m.prompt = d.text(prompt.getText(), "submit.text");
      break;
    case wire::Submit::Prompt::TOKENS:
      m.prompt = d.copied<TokenId>(prompt.getTokens(), "submit.tokens");
      break;
    case wire::Submit::Prompt::CHAT: {
      std::vector<ChatMessage> chat;
      const auto list = prompt.getChat();
      d.require_room<wire::ChatMessage>(list, "submit.chat");
      chat.reserve(list.size());
      for (const auto turn : list) {
        chat.push_back(
            {d.text(turn.getRole(), "chat.role"), d.text(turn.getContent(), "chat.content")});
      }
      m.prompt = std::move(chat);
      break;
    }
    default:
      throw Violation{"submit: unknown kind of prompt"};
  }
  const auto s = r.getSampling();
  m.sampling = {s.getTemperature(),
                s.getTopP(),
                s.getTopK(),
                s.getMinP(),
                s.getRepetitionPenalty(),
                s.getFrequencyPenalty(),
                s.getPresencePenalty(),
                s.getSeed()};
  m.max_tokens = r.getMaxTokens();
  const auto stop = r.getStop();
  d.require_pointers(stop.size(), "submit.stop");
  m.stop.reserve(stop.size());
  for (const auto text : stop)
    m.stop.push_back(d.text(text, "submit.stop"));
  m.logprobs = r.getLogprobs();
  m.ignore_eos = r.getIgnoreEos();
  m.accepted_tokens = d.copied<TokenId>(r.getAcceptedTokens(), "submit.acceptedTokens");
  return m;
}

ToWorker read_to_worker(Decoder& d) {
  const auto message = d.root();
  switch (message.which()) {
    case wire::Message::SUBMIT:
      return read_submit(d, message.getSubmit());
    case wire::Message::CANCEL:
      return Cancel{RequestId{message.getCancel().getRequest()}};
    case wire::Message::TOKENIZE: {
      const auto r = message.getTokenize();
      return Tokenize{RequestId{r.getRequest()}, d.text(r.getText(), "tokenize.text"),
                      r.getAddSpecial(), r.getParseSpecial()};
    }
    case wire::Message::DETOKENIZE: {
      const auto r = message.getDetokenize();
      return Detokenize{RequestId{r.getRequest()},
                        d.copied<TokenId>(r.getTokens(), "detokenize.tokens")};
    }
    case wire::Message::EMBED: {
      const auto r = message.getEmbed();
      return Embed{RequestId{r.getRequest()}, d.copied<TokenId>(r.getTokens(), "embed.tokens")};
    }
    case wire::Message::PING:
      return Ping{message.getPing().getNonce()};
    case wire::Message::VAULT: {
      const auto r = message.getVault();
      return Vault{r.getEpoch(), r.getFiles(), r.getBlocks(), r.getKeepKv(), r.getReplaced()};
    }
    case wire::Message::DRAIN:
      return Drain{};
    case wire::Message::SHUTDOWN:
      return Shutdown{};
    case wire::Message::PROFILE:
      return Profile{};
    case wire::Message::PROMOTE:
      return Promote{message.getPromote().getKeepKv(), message.getPromote().getUnsettled()};
    case wire::Message::SETTLED:
      return Settled{};
    default:
      break;
  }
  throw Violation{"kind " + std::to_string(static_cast<unsigned>(message.which())) +
                  " is none that the daemon may send"};
}

}  // namespace

Result<FromWorker> decode_from_worker(std::span<const std::byte> record) {
  return guarded<FromWorker>(record, Texts::kMustBeUtf8, read_from_worker);
}

Result<ToWorker> decode_to_worker(std::span<const std::byte> record) {
  return guarded<ToWorker>(record, Texts::kAnyBytes, read_to_worker);
}

Result<bool> visit_tokens(std::span<const std::byte> record,
                          const std::function<void(const SequenceTokensView&)>& visit) {
  return guarded<bool>(record, Texts::kMustBeUtf8, [&](Decoder& d) {
    const auto message = d.root();
    if (!message.isTokens()) return false;
    const auto sequences = message.getTokens().getSequences();
    d.require_room<wire::SequenceTokens>(sequences, "tokens.sequences");
    for (const auto s : sequences)
      visit(read_sequence(d, s));
    return true;
  });
}

}  // namespace bulkhead::ipc
