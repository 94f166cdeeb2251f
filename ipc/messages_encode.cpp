// Writing messages: one unpacked Cap'n Proto segment, without a segment table, straight into the
// caller's record.
#include <algorithm>
#include <bit>
#include <cstring>

#include <capnp/message.h>
#include <kj/exception.h>

#include "ipc/messages.capnp.h"
#include "ipc/messages.hpp"
#include "ipc/utf8.hpp"

namespace bulkhead::ipc {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token lists are copied as they are on the wire");

// ---- sizes, in 8-byte words ----

constexpr std::size_t data_words(std::size_t bytes) {
  return (bytes + 7) / 8;
}
std::size_t words(const std::string& text) {
  return data_words(text.size() + 1);
}  // and its NUL
std::size_t words(const std::vector<std::uint32_t>& list) {
  return data_words(list.size() * 4);
}
std::size_t words(const std::vector<float>& list) {
  return data_words(list.size() * 4);
}

template <typename Wire>
constexpr std::size_t struct_words() {
  return capnp::sizeInWords<Wire>();
}
template <typename Wire>
constexpr std::size_t list_words(std::size_t count) {
  return 1 + count * struct_words<Wire>();  // a tag word, then the elements
}

std::size_t body_words(const Hello& m) {
  return struct_words<wire::Hello>() + words(m.build);
}
std::size_t body_words(const Progress& m) {
  return struct_words<wire::Progress>() + words(m.stage);
}
std::size_t body_words(const Ready& m) {
  std::size_t sum = struct_words<wire::Ready>() + words(m.model_name) + words(m.architecture) +
                    words(m.device) + words(m.numerics_id) + words(m.chat_template) +
                    list_words<wire::Optimization>(m.optimizations.size()) +
                    struct_words<wire::VaultReport>() + words(m.vault.reason);
  for (const auto& o : m.optimizations)
    sum += words(o.name) + words(o.reason);
  return sum;
}
std::size_t body_words(const Accepted& m) {
  return struct_words<wire::Accepted>() + words(m.prompt_tokens);
}
std::size_t body_words(const TokenBatch& m) {
  std::size_t sum =
      struct_words<wire::TokenBatch>() + list_words<wire::SequenceTokens>(m.sequences.size());
  for (const auto& s : m.sequences) {
    sum += words(s.tokens) + data_words(s.text.size());
    if (s.logprobs.empty()) continue;
    sum += list_words<wire::TokenLogprob>(s.logprobs.size());
    for (const auto& l : s.logprobs) {
      sum += data_words(l.bytes.size()) + list_words<wire::TopLogprob>(l.top.size());
      for (const auto& t : l.top)
        sum += data_words(t.bytes.size());
    }
  }
  return sum;
}
std::size_t body_words(const Finished& m) {
  return struct_words<wire::Finished>() + data_words(m.text.size());
}
std::size_t body_words(const Failed& m) {
  return struct_words<wire::Failed>() + words(m.message) + words(m.parameter);
}
std::size_t body_words(const Tokenized& m) {
  return struct_words<wire::Tokenized>() + words(m.tokens);
}
std::size_t body_words(const Detokenized& m) {
  return struct_words<wire::Detokenized>() + data_words(m.text.size());
}
std::size_t body_words(const Embedded& m) {
  return struct_words<wire::Embedded>() + words(m.values);
}
std::size_t body_words(const Stats& m) {
  std::size_t sum = struct_words<wire::Stats>() + list_words<wire::Counter>(m.counters.size());
  for (const auto& c : m.counters)
    sum += words(c.name);
  return sum;
}
std::size_t body_words(const Pong&) {
  return struct_words<wire::Ping>();
}
std::size_t body_words(const Fatal& m) {
  return struct_words<wire::Fatal>() + words(m.message);
}
std::size_t body_words(const Drained&) {
  return 0;
}
std::size_t body_words(const VaultOffer&) {
  return struct_words<wire::VaultOffer>();
}

std::size_t body_words(const Submit& m) {
  std::size_t sum = struct_words<wire::Submit>() + struct_words<wire::Sampling>() +
                    words(m.accepted_tokens) + m.stop.size();
  for (const auto& s : m.stop)
    sum += words(s);
  if (const auto* text = std::get_if<std::string>(&m.prompt)) {
    sum += words(*text);
  } else if (const auto* tokens = std::get_if<std::vector<TokenId>>(&m.prompt)) {
    sum += words(*tokens);
  } else {
    const auto& chat = std::get<std::vector<ChatMessage>>(m.prompt);
    sum += list_words<wire::ChatMessage>(chat.size());
    for (const auto& turn : chat)
      sum += words(turn.role) + words(turn.content);
  }
  return sum;
}
std::size_t body_words(const Cancel&) {
  return struct_words<wire::Cancel>();
}
std::size_t body_words(const Tokenize& m) {
  return struct_words<wire::Tokenize>() + words(m.text);
}
std::size_t body_words(const Detokenize& m) {
  return struct_words<wire::Detokenize>() + words(m.tokens);
}
std::size_t body_words(const Embed& m) {
  return struct_words<wire::Embed>() + words(m.tokens);
}
std::size_t body_words(const Ping&) {
  return struct_words<wire::Ping>();
}
std::size_t body_words(const Vault&) {
  return struct_words<wire::Vault>();
}
std::size_t body_words(const Drain&) {
  return 0;
}
std::size_t body_words(const Shutdown&) {
  return 0;
}
std::size_t body_words(const Profile&) {
  return 0;
}
std::size_t body_words(const Promote&) {
  return struct_words<wire::Promote>();
}
std::size_t body_words(const Settled&) {
  return 0;
}

template <typename Body>
std::size_t bound_bytes(const Body& body) {
  return 8 * (1 + struct_words<wire::Message>() + body_words(body));  // the root pointer first
}

// ---- fields ----

// Text from the worker must be UTF-8 or the daemon ends the worker; a stray byte in a model file's
// metadata is no reason to. (Generated text has its own rule: the detokeniser releases whole
// characters only.)
template <typename Init>
void put_text(const std::string& text, Init init) {
  capnp::Text::Builder builder = init(static_cast<unsigned>(text.size()));
  if (!text.empty()) std::memcpy(builder.begin(), text.data(), text.size());
  if (!is_utf8(text)) repair_utf8({builder.begin(), text.size()});
}

// A prompt goes down as the client sent it.
template <typename Init>
void put_exact_text(const std::string& text, Init init) {
  capnp::Text::Builder builder = init(static_cast<unsigned>(text.size()));
  if (!text.empty()) std::memcpy(builder.begin(), text.data(), text.size());
}

template <typename Init>
void put_data(const std::string& bytes, Init init) {
  if (bytes.empty()) return;
  capnp::Data::Builder builder = init(static_cast<unsigned>(bytes.size()));
  std::memcpy(builder.begin(), bytes.data(), bytes.size());
}

template <typename T, typename Init>
void put_list(const std::vector<T>& list, Init init) {
  if (list.empty()) return;
  auto builder = init(static_cast<unsigned>(list.size()));
  unsigned i = 0;
  for (const T& value : list)
    builder.set(i++, value);
}

#define INIT(builder, field) [&](unsigned size) { return (builder).init##field(size); }

// ---- messages ----

void put(const Hello& m, wire::Message::Builder message) {
  auto b = message.initHello();
  b.setProtocol(m.protocol);
  b.setPid(m.pid);
  put_text(m.build, INIT(b, Build));
}
void put(const Progress& m, wire::Message::Builder message) {
  auto b = message.initProgress();
  put_text(m.stage, INIT(b, Stage));
  b.setDone(m.done);
  b.setTotal(m.total);
}
void put(const Ready& m, wire::Message::Builder message) {
  auto b = message.initReady();
  put_text(m.model_name, INIT(b, ModelName));
  put_text(m.architecture, INIT(b, Architecture));
  put_text(m.device, INIT(b, Device));
  put_text(m.numerics_id, INIT(b, NumericsId));
  b.setContextLimit(m.context_limit);
  b.setVocabularySize(m.vocabulary_size);
  b.setKvCacheTokens(m.kv_cache_tokens);
  b.setWeightBytes(m.weight_bytes);
  b.setLoadMilliseconds(m.load_milliseconds);
  b.setHasChatTemplate(m.has_chat_template);
  put_text(m.chat_template, INIT(b, ChatTemplate));
  auto list = b.initOptimizations(static_cast<unsigned>(m.optimizations.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const Optimization& optimization = m.optimizations[i];
    auto o = list[i];
    put_text(optimization.name, INIT(o, Name));
    o.setActive(optimization.active);
    put_text(optimization.reason, INIT(o, Reason));
  }
  auto vault = b.initVault();
  vault.setState(static_cast<wire::VaultState>(m.vault.state));
  put_text(m.vault.reason, INIT(vault, Reason));
  vault.setImportMicroseconds(m.vault.import_microseconds);
  vault.setCheckMicroseconds(m.vault.check_microseconds);
  vault.setAdoptMicroseconds(m.vault.adopt_microseconds);
  vault.setPagesAdopted(m.vault.pages_adopted);
  vault.setPagesWithheld(m.vault.pages_withheld);
}
void put(const Accepted& m, wire::Message::Builder message) {
  auto b = message.initAccepted();
  b.setRequest(m.request.value);
  put_list(m.prompt_tokens, INIT(b, PromptTokens));
  b.setMaxTokens(m.max_tokens);
}
void put(const TokenBatch& m, wire::Message::Builder message) {
  auto b = message.initTokens();
  b.setStep(m.step);
  auto list = b.initSequences(static_cast<unsigned>(m.sequences.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const SequenceTokens& sequence = m.sequences[i];
    auto s = list[i];
    s.setRequest(sequence.request.value);
    s.setFirstIndex(sequence.first_index);
    put_list(sequence.tokens, INIT(s, Tokens));
    put_data(sequence.text, INIT(s, Text));
    if (sequence.logprobs.empty()) continue;
    auto logprobs = s.initLogprobs(static_cast<unsigned>(sequence.logprobs.size()));
    for (unsigned j = 0; j < logprobs.size(); ++j) {
      const TokenLogprob& logprob = sequence.logprobs[j];
      auto l = logprobs[j];
      l.setLogprob(logprob.logprob);
      put_data(logprob.bytes, INIT(l, Bytes));
      auto top = l.initTop(static_cast<unsigned>(logprob.top.size()));
      for (unsigned k = 0; k < top.size(); ++k) {
        auto t = top[k];
        t.setToken(logprob.top[k].token);
        t.setLogprob(logprob.top[k].logprob);
        put_data(logprob.top[k].bytes, INIT(t, Bytes));
      }
    }
  }
}
void put(const Finished& m, wire::Message::Builder message) {
  auto b = message.initFinished();
  b.setRequest(m.request.value);
  b.setReason(static_cast<wire::FinishReason>(m.reason));
  put_data(m.text, INIT(b, Text));
  b.setPromptTokens(m.prompt_tokens);
  b.setCompletionTokens(m.completion_tokens);
  b.setPrefillMicroseconds(m.prefill_microseconds);
  b.setDecodeMicroseconds(m.decode_microseconds);
  b.setCachedTokens(m.cached_tokens);
}
void put(const Failed& m, wire::Message::Builder message) {
  auto b = message.initFailed();
  b.setRequest(m.request.value);
  b.setCode(static_cast<wire::FailureCode>(m.code));
  put_text(m.message, INIT(b, Message));
  put_text(m.parameter, INIT(b, Parameter));
}
void put(const Tokenized& m, wire::Message::Builder message) {
  auto b = message.initTokenized();
  b.setRequest(m.request.value);
  put_list(m.tokens, INIT(b, Tokens));
}
void put(const Detokenized& m, wire::Message::Builder message) {
  auto b = message.initDetokenized();
  b.setRequest(m.request.value);
  put_data(m.text, INIT(b, Text));
}
void put(const Embedded& m, wire::Message::Builder message) {
  auto b = message.initEmbedded();
  b.setRequest(m.request.value);
  put_list(m.values, INIT(b, Values));
}
void put(const Stats& m, wire::Message::Builder message) {
  auto b = message.initStats();
  b.setSteps(m.steps);
  b.setActiveSequences(m.active_sequences);
  b.setWaitingSequences(m.waiting_sequences);
  b.setKvPagesUsed(m.kv_pages_used);
  b.setKvPagesTotal(m.kv_pages_total);
  auto list = b.initCounters(static_cast<unsigned>(m.counters.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    auto c = list[i];
    put_text(m.counters[i].name, INIT(c, Name));
    c.setValue(m.counters[i].value);
  }
}
void put(const Pong& m, wire::Message::Builder message) {
  message.initPong().setNonce(m.nonce);
}
void put(const Fatal& m, wire::Message::Builder message) {
  auto b = message.initFatal();
  put_text(m.message, INIT(b, Message));
}
void put(const Drained&, wire::Message::Builder message) {
  message.setDrained();
}
void put(const VaultOffer& m, wire::Message::Builder message) {
  auto b = message.initVaultOffer();
  b.setEpoch(m.epoch);
  b.setFiles(m.files);
  b.setBlocks(m.blocks);
}

void put(const Submit& m, wire::Message::Builder message) {
  auto b = message.initSubmit();
  b.setRequest(m.request.value);
  auto prompt = b.initPrompt();
  if (const auto* text = std::get_if<std::string>(&m.prompt)) {
    put_exact_text(*text, INIT(prompt, Text));
  } else if (const auto* tokens = std::get_if<std::vector<TokenId>>(&m.prompt)) {
    auto list = prompt.initTokens(static_cast<unsigned>(tokens->size()));
    for (unsigned i = 0; i < list.size(); ++i)
      list.set(i, (*tokens)[i]);
  } else {
    const auto& chat = std::get<std::vector<ChatMessage>>(m.prompt);
    auto list = prompt.initChat(static_cast<unsigned>(chat.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      auto turn = list[i];
      put_exact_text(chat[i].role, INIT(turn, Role));
      put_exact_text(chat[i].content, INIT(turn, Content));
    }
  }
  auto s = b.initSampling();
  s.setTemperature(m.sampling.temperature);
  s.setTopP(m.sampling.top_p);
  s.setTopK(m.sampling.top_k);
  s.setMinP(m.sampling.min_p);
  s.setRepetitionPenalty(m.sampling.repetition_penalty);
  s.setFrequencyPenalty(m.sampling.frequency_penalty);
  s.setPresencePenalty(m.sampling.presence_penalty);
  s.setSeed(m.sampling.seed);
  b.setMaxTokens(m.max_tokens);
  auto stop = b.initStop(static_cast<unsigned>(m.stop.size()));
  for (unsigned i = 0; i < stop.size(); ++i) {
    put_exact_text(m.stop[i], [&](unsigned size) { return stop.init(i, size); });
  }
  b.setLogprobs(m.logprobs);
  b.setIgnoreEos(m.ignore_eos);
  put_list(m.accepted_tokens, INIT(b, AcceptedTokens));
}
void put(const Cancel& m, wire::Message::Builder message) {
  message.initCancel().setRequest(m.request.value);
}
void put(const Tokenize& m, wire::Message::Builder message) {
  auto b = message.initTokenize();
  b.setRequest(m.request.value);
  put_exact_text(m.text, INIT(b, Text));
  b.setAddSpecial(m.add_special);
  b.setParseSpecial(m.parse_special);
}
void put(const Detokenize& m, wire::Message::Builder message) {
  auto b = message.initDetokenize();
  b.setRequest(m.request.value);
  put_list(m.tokens, INIT(b, Tokens));
}
void put(const Embed& m, wire::Message::Builder message) {
  auto b = message.initEmbed();
  b.setRequest(m.request.value);
  put_list(m.tokens, INIT(b, Tokens));
}
void put(const Ping& m, wire::Message::Builder message) {
  message.initPing().setNonce(m.nonce);
}
void put(const Vault& m, wire::Message::Builder message) {
  auto b = message.initVault();
  b.setEpoch(m.epoch);
  b.setFiles(m.files);
  b.setBlocks(m.blocks);
  b.setKeepKv(m.keep_kv);
  b.setReplaced(m.replaced);
}
void put(const Drain&, wire::Message::Builder message) {
  message.setDrain();
}
void put(const Shutdown&, wire::Message::Builder message) {
  message.setShutdown();
}
void put(const Profile&, wire::Message::Builder message) {
  message.setProfile();
}
void put(const Promote& m, wire::Message::Builder message) {
  auto b = message.initPromote();
  b.setKeepKv(m.keep_kv);
  b.setUnsettled(m.unsettled);
}
void put(const Settled&, wire::Message::Builder message) {
  message.setSettled();
}

#undef INIT

template <typename Body>
Result<std::size_t> encode_body(const Body& body, std::span<std::byte> record) {
  const std::size_t bound = bound_bytes(body);
  if (reinterpret_cast<std::uintptr_t>(record.data()) % 8 != 0) {
    return Error(ErrorCode::kInvalidArgument, "encode: the record is not 8-byte aligned");
  }
  if (record.size() < bound) {
    return Error(ErrorCode::kResourceExhausted,
                 "encode: the message takes up to " + std::to_string(bound) +
                     " bytes, the record has " + std::to_string(record.size()));
  }
  try {
    std::memset(record.data(), 0, bound);  // FlatMessageBuilder expects zeroed memory
    capnp::FlatMessageBuilder builder(
        kj::arrayPtr(reinterpret_cast<capnp::word*>(record.data()), bound / 8));
    put(body, builder.initRoot<wire::Message>());
    const auto segments = builder.getSegmentsForOutput();
    return segments[0].size() * sizeof(capnp::word);
  } catch (const kj::Exception& e) {
    return Error(ErrorCode::kInvalidArgument, std::string("encode: ") + e.getDescription().cStr());
  } catch (const std::exception& e) {
    return Error(ErrorCode::kInternal, std::string("encode: ") + e.what());
  }
}

}  // namespace

std::size_t encoded_bound(const FromWorker& message) {
  return std::visit([](const auto& body) { return bound_bytes(body); }, message);
}
std::size_t encoded_bound(const ToWorker& message) {
  return std::visit([](const auto& body) { return bound_bytes(body); }, message);
}
std::size_t encoded_bound(const TokenBatch& batch) {
  return bound_bytes(batch);
}

Result<std::size_t> encode(const FromWorker& message, std::span<std::byte> record) {
  return std::visit([&](const auto& body) { return encode_body(body, record); }, message);
}
Result<std::size_t> encode(const ToWorker& message, std::span<std::byte> record) {
  return std::visit([&](const auto& body) { return encode_body(body, record); }, message);
}
Result<std::size_t> encode(const TokenBatch& batch, std::span<std::byte> record) {
  return encode_body(batch, record);
}

}  // namespace bulkhead::ipc
