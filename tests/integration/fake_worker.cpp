// A worker without a model. It speaks over the real channel and follows a script. So tests can check everything that
// the daemon does with real processes but without a GPU, and can make a worker misbehave.
//
// A prompt's tokens are its bytes. Generated token i is 1000 + i with the text " t<i>", but token 0's text is
// "s<seed>". A model whose file's name has "other" in it gives 5000 + i and " o<i>". Words in the prompt are orders,
// which fake_orders.hpp lists. A chat whose chat_template_kwargs have "raw" (and "family"), and with FAKE_ANSWERS every
// chat, gets the text that fake_answers.hpp describes, five bytes a token, cut into parts as a model of that family
// writes them. FAKE_* in the environment: LOAD_MS, FATAL (message), DIE_FIRST (the first N starts die while loading;
// counted in COUNTER_FILE), DIE_AFTER (all starts after the first N do), DIE_BY_SIGNALS (those die by a signal, each
// start by another), CRASH_WITH_UNITS (each start without engine.matrix_units=off dies by SIGSEGV), PROTOCOL,
// NUMERICS_BY_PID, NUMERICS_BY_DEVICE (--device), NAME, HOLD, THREAD (has a second thread), SPARE_LIES (a spare that
// finds a file of that name removes the file and breaks a rule).
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "ipc/channel.hpp"
#include "ipc/messages.hpp"
#include "tests/integration/fake_answers.hpp"
#include "tests/integration/fake_orders.hpp"
#include "tests/integration/fake_questions.hpp"
#include "worker/model/answer/answer_parser.hpp"

namespace {

using namespace bulkhead;
using namespace bulkhead::test;
namespace answer = model::answer;
using std::chrono::milliseconds;

struct Sequence {
  std::string prompt;
  ipc::Submit submit;
  std::uint32_t next = 0;
  std::uint32_t given = 0;  // accepted tokens that the request came with
  std::uint32_t limit = 0;
  std::string raw;  // what the "model" says
  std::optional<answer::AnswerParser> parser;

  static constexpr std::size_t kRawBytes = 5;
  bool raw_is_over() const { return parser && next * kRawBytes >= raw.size(); }
  std::string_view raw_piece(std::uint32_t index) const {
    return std::string_view(raw).substr(index * kRawBytes, kRawBytes);
  }
};

std::vector<ipc::AnswerPart> parts_of(const std::vector<answer::Delta>& deltas) {
  std::vector<ipc::AnswerPart> parts;
  for (const answer::Delta& delta : deltas)
    parts.push_back({static_cast<ipc::PartKind>(delta.kind), delta.call, delta.text, delta.id});
  return parts;
}

constexpr std::uint32_t kContext = 100000;

class Worker {
 public:
  Worker(ipc::Channel& channel, std::string device, bool other, std::string broken_model,
         bool stands_by, bool without_units)
      : channel_(channel),
        device_(std::move(device)),
        other_(other),
        broken_model_(std::move(broken_model)),
        stands_by_(stands_by),
        without_units_(without_units) {}

  void run() {
    load();
    while (true) {
      bool slow = false, busy = false;
      for (auto& [id, sequence] : sequences_) {
        slow |= sequence.prompt.find("slow") != std::string::npos;
        busy |= sequence.prompt.find("never") == std::string::npos;
      }
      if (stands_by_ && ::unlink(environment("FAKE_SPARE_LIES").c_str()) == 0)
        send(ipc::Finished{});
      milliseconds wait = busy ? milliseconds(slow ? 5 : 0) : milliseconds(20);
      auto readable = ipc::wait_readable(channel_, std::chrono::microseconds(0), wait);
      if (!readable.ok()) std::exit(0);
      for (int i = 0; *readable && i < 100; ++i) {
        if (!receive()) break;
      }
      step();
    }
  }

 private:
  void send(const ipc::FromWorker& message) {
    if (!ipc::send(channel_, message, milliseconds(20000)).ok()) std::exit(4);
  }

  void load() {
    ipc::Hello hello;
    hello.pid = static_cast<std::uint32_t>(::getpid());
    if (!environment("FAKE_PROTOCOL").empty()) hello.protocol = 99;
    send(hello);
    if (!environment("FAKE_FATAL").empty()) {
      send(ipc::Fatal{environment("FAKE_FATAL")});
      std::exit(1);
    }
    std::string words;
    if (broken_model_.empty() || (std::ifstream(broken_model_) >> words && words != "broken")) {
      // nothing is wrong with it
    } else {
      send(ipc::Fatal{broken_model_ + " is broken"});
      std::exit(1);
    }
    if (!environment("FAKE_CRASH_WITH_UNITS").empty() && !without_units_) ::raise(SIGSEGV);
    std::string counter = environment("FAKE_COUNTER_FILE");
    if (!counter.empty()) {
      std::ofstream(counter, std::ios::app) << "x";
      std::ifstream file(counter, std::ios::ate);
      if (file.tellg() <= std::atoi(environment("FAKE_DIE_FIRST").c_str())) std::exit(7);
      const std::string after = environment("FAKE_DIE_AFTER");
      if (!after.empty() && file.tellg() > std::atoi(after.c_str()))
        die_while_loading(static_cast<std::size_t>(file.tellg()));
    }
    int load_ms = std::atoi(environment("FAKE_LOAD_MS").c_str());
    for (int done = 0; done < load_ms; done += 10) {
      send(ipc::Progress{"reading weights", static_cast<std::uint64_t>(done),
                         static_cast<std::uint64_t>(load_ms)});
      std::this_thread::sleep_for(milliseconds(10));
    }
    ipc::Ready ready;
    ready.model_name = environment("FAKE_NAME").empty() ? "fake-model" : environment("FAKE_NAME");
    ready.architecture = "fake";
    ready.device = "none";
    ready.numerics_id = "fake-1";
    if (!environment("FAKE_NUMERICS_BY_PID").empty())
      // The process id that other processes see; in its own namespace it may be the same as its
      // predecessor's.
      ready.numerics_id = "fake-" + std::filesystem::read_symlink("/proc/self").string();
    if (!environment("FAKE_NUMERICS_BY_DEVICE").empty()) ready.numerics_id = "fake-" + device_;
    ready.context_limit = kContext;
    ready.vocabulary_size = 200000;
    ready.has_chat_template = true;
    ready.chat_template = "chatml";
    ready.template_source = "{{ messages }} \u00e9\n";
    ready.bos_token = "<s>";
    ready.eos_token = "</s>";
    ready.facts = {7615616512, "7.6B", "Q4_K_M"};
    ready.sampling = {{"temperature", 0.6}, {"top_k", 20}, {"repetition_penalty", 1.05}};
    ready.capabilities = {"completion", "tools"};
    ready.optimizations = {{"memory_pool", true, ""}};
    ready_ = ready;
    send(ready);
    ipc::Stats stats;
    stats.kv_pages_total = 7;
    // The daemon has figures of its own with the last two names.
    stats.counters = {{"fallback_allocations_total", 3},
                      {"Bad name\n", 1},
                      {"restarts_total", 99},
                      {"deaths_total", 99}};
    send(stats);
  }

  bool receive() {
    auto record = channel_.try_receive();
    if (!record.ok()) std::exit(0);
    if (record->empty()) return false;
    auto message = ipc::decode_to_worker(*record);
    channel_.release();
    if (!message.ok()) std::exit(5);
    if (auto* submit = std::get_if<ipc::Submit>(&*message)) {
      begin(std::move(*submit));
    } else if (auto* cancel = std::get_if<ipc::Cancel>(&*message)) {
      if (sequences_.erase(cancel->request) > 0) {
        ipc::Finished finished;
        finished.request = cancel->request;
        finished.reason = ipc::FinishReason::kCancelled;
        send(finished);
      }
    } else if (auto* tokenize = std::get_if<ipc::Tokenize>(&*message)) {
      send(tokenized(*tokenize));
    } else if (auto* detokenize = std::get_if<ipc::Detokenize>(&*message)) {
      send(detokenized(*detokenize));
    } else if (auto* apply = std::get_if<ipc::ApplyTemplate>(&*message)) {
      send(ipc::AppliedTemplate{apply->request, rendered(apply->prompt), {"a warning"}});
    } else if (auto* check = std::get_if<ipc::CheckConstraint>(&*message)) {
      send(ipc::CheckedConstraint{check->request});
    } else if (auto* embed = std::get_if<ipc::Embed>(&*message)) {
      held_.push_back(std::move(*embed));
    } else if (auto* rank = std::get_if<ipc::Rank>(&*message)) {
      send(ranked(*rank));
    } else if (auto* ping = std::get_if<ipc::Ping>(&*message)) {
      send(ipc::Pong{ping->nonce});
    } else if (std::holds_alternative<ipc::Profile>(*message)) {
      ipc::Stats stats;
      stats.counters = {
          {"kernel_norm_microseconds", 12}, {"pool_hits", 3}, {"steps_ahead_total", 5}};
      send(stats);
    } else if (std::holds_alternative<ipc::Promote>(*message)) {
      stands_by_ = false;
      send(ready_);
    } else if (std::holds_alternative<ipc::Drain>(*message)) {
      draining_ = true;
    } else if (std::holds_alternative<ipc::Shutdown>(*message)) {
      std::exit(0);
    }
    return true;
  }

  void begin(ipc::Submit submit) {
    Sequence sequence;
    ipc::Accepted accepted;
    accepted.request = submit.request;
    std::optional<std::string> orders;
    if (auto* text = std::get_if<std::string>(&submit.prompt)) {
      sequence.prompt = *text;
    } else if (auto* chat = std::get_if<ipc::ChatPrompt>(&submit.prompt)) {
      sequence.prompt = rendered(*chat);
      orders = read_raw(*chat, sequence, submit);
    } else if (auto* infill = std::get_if<ipc::InfillPrompt>(&submit.prompt)) {
      for (const ipc::InfillFile& file : infill->files)
        sequence.prompt += file.name + ":" + file.text + "\n";
      sequence.prompt += infill->prefix + "[]" + infill->suffix;
    } else {
      accepted.prompt_tokens = std::get<std::vector<ipc::TokenId>>(submit.prompt);
    }
    if (accepted.prompt_tokens.empty()) {
      for (unsigned char c : sequence.prompt)
        accepted.prompt_tokens.push_back(c);
    }
    if (orders) sequence.prompt = *orders;
    if (sequence.prompt.find("poison") != std::string::npos) std::abort();
    misuse_log(sequence.prompt);
    if (const auto grown = order(sequence.prompt, "grows")) {
      constexpr double kMib = 1 << 20;
      ipc::Stats stats;
      stats.counters = {{"kv_bytes_at_first", kMib}, {"kv_bytes", (1 + *grown) * kMib}};
      send(stats);
    }
    const bool fits = sequence.prompt.size() <= order(sequence.prompt, "fits").value_or(kContext);
    if (sequence.prompt.find("toolong") != std::string::npos || !fits) {
      return send(ipc::Failed{submit.request, ipc::FailureCode::kContextExceeded,
                              "the prompt has too many tokens", "prompt"});
    }
    if (sequence.prompt.find("refused") != std::string::npos) {
      return send(ipc::Failed{submit.request, ipc::FailureCode::kUnsupported,
                              "this model has no chat template", "messages"});
    }
    sequence.given = static_cast<std::uint32_t>(submit.accepted_tokens.size());
    sequence.next = sequence.given;
    for (std::uint32_t i = 0; i < sequence.given; ++i) {
      if (submit.accepted_tokens[i] != base() + i)
        std::exit(6);  // the journal must give back what this worker sent
    }
    sequence.limit = submit.max_tokens != 0 ? submit.max_tokens : sequence.parser ? 10000 : 64;
    accepted.max_tokens = sequence.limit;
    if (sequence.prompt.find("warn") != std::string::npos) accepted.warnings = {"a warning"};
    RequestId id = submit.request;
    if (submit.count_only) {
      send(accepted);
      ipc::Finished counted;
      counted.request = id;
      counted.reason = ipc::FinishReason::kLength;
      return send(counted);
    }
    sequence.submit = std::move(submit);
    const bool told = tell_prompt(accepted, sequence.submit);
    sequences_[id] = std::move(sequence);
    if (!told) send(accepted);
  }

  // Answers what was asked to embed, except inputs with the order "hold" for as long as FAKE_HOLD exists.
  void answer_held() {
    const bool hold = ::access(environment("FAKE_HOLD").c_str(), F_OK) == 0;
    std::erase_if(held_, [&](const ipc::Embed& embed) {
      const auto* text = std::get_if<std::string>(&embed.input);
      if (hold && text != nullptr && text->find("hold") != std::string::npos) return false;
      send(embedded(embed));
      return true;
    });
  }

  // Sends three tokens of the prompt at a time. With "halfway@N" in the prompt, the first process dies
  // after N of them.
  bool tell_prompt(const ipc::Accepted& accepted, const ipc::Submit& submit) {
    if (!submit.tell_prompt) return false;
    send(accepted);
    ipc::PromptTokens told{submit.request, 0, {}};
    std::string prompt;
    for (const ipc::TokenId token : accepted.prompt_tokens)
      prompt += static_cast<char>(token);
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      ipc::TokenLogprob token{-0.25F, std::string(1, prompt[i]), {}};
      for (std::int32_t n = 0; n < submit.logprobs && i > 0; ++n)
        token.top.push_back({1000, -0.25F, "p" + std::to_string(n)});
      told.tokens.push_back(std::move(token));
      if (told.tokens.size() < 3 && i + 1 < prompt.size()) continue;
      send(told);
      told.first_index += static_cast<std::uint32_t>(std::exchange(told.tokens, {}).size());
      if (order(prompt, "halfway") != told.first_index) continue;
      if (::access(environment("FAKE_HOLD").c_str(), F_OK) == 0) continue;
      std::ofstream(environment("FAKE_HOLD")) << "died";
      die_by_signal();
    }
    return true;
  }

  // Returns the orders that replace those in the prompt, if there are any.
  static std::optional<std::string> read_raw(const ipc::ChatPrompt& chat, Sequence& sequence,
                                             const ipc::Submit& submit) {
    const auto answered = test::fake_answer(chat, environment("FAKE_ANSWERS"));
    if (!answered) return std::nullopt;
    const auto json = nlohmann::ordered_json::parse(chat.json);
    sequence.raw = answered->raw;
    answer::AnswerRequest request;
    if (json.contains("tools")) request.tools = *answer::Tools::from_json(json["tools"].dump());
    request.id_seed = submit.sampling.seed;
    sequence.parser.emplace(*answer::family_named(answered->family), std::move(request));
    for (std::uint32_t i = 0; i < submit.accepted_tokens.size(); ++i)
      sequence.parser->feed(sequence.raw_piece(i));
    return answered->orders;
  }

  void step() {
    answer_held();
    if (!sequences_.empty()) channel_.beat(++step_);
    ipc::TokenBatch batch;
    batch.step = step_;
    std::vector<ipc::Finished> finished;
    for (auto& [id, sequence] : sequences_) {
      if (sequence.prompt.find("never") != std::string::npos) continue;
      if (order(sequence.prompt, "hold") == sequence.next &&
          ::access(environment("FAKE_HOLD").c_str(), F_OK) == 0)
        continue;
      obey(sequence, batch);
      auto eos = order(sequence.prompt, "eos");
      const bool over = (eos && sequence.next >= *eos) || sequence.raw_is_over();
      const bool cut = sequence.next >= sequence.limit || sequence.submit.prompt_only;
      if (cut || over) {
        ipc::Finished end;
        end.request = id;
        end.reason = cut ? ipc::FinishReason::kLength : ipc::FinishReason::kStop;
        if (sequence.parser) {
          if (over) end.reason = ipc::FinishReason::kStop;
          end.parts = parts_of(sequence.parser->finish(end.reason == ipc::FinishReason::kLength
                                                           ? answer::Ended::kLength
                                                           : answer::Ended::kStop));
          end.reasoning_tokens = 3;
        } else if (!sequence.submit.prompt_only) {
          end.text = "!";
        }
        end.prompt_tokens = 0;
        end.completion_tokens = sequence.next;
        const std::uint32_t cached = order(sequence.prompt, "cached").value_or(0);
        if (cached <= sequence.prompt.size() || sequence.given == 0) end.cached_tokens = cached;
        finished.push_back(end);
        continue;
      }
      ipc::SequenceTokens tokens;
      tokens.request = id;
      tokens.first_index = sequence.next + skew_;
      tokens.tokens = {base() + sequence.next};
      tokens.text = sequence.next == 0 ? "s" + std::to_string(sequence.submit.sampling.seed)
                                       : (other_ ? " o" : " t") + std::to_string(sequence.next);
      if (sequence.parser) {
        tokens.text.clear();
        tokens.parts = parts_of(sequence.parser->feed(sequence.raw_piece(sequence.next)));
      }
      if (sequence.prompt.find("big") != std::string::npos) tokens.text.append(1000, 'x');
      if (sequence.submit.logprobs >= 0) {
        ipc::TokenLogprob logprob{-0.5F, tokens.text, {}};
        for (std::int32_t i = 0; i < sequence.submit.logprobs; ++i) {
          logprob.top.push_back({1000 + sequence.next + static_cast<std::uint32_t>(i),
                                 -0.5F - static_cast<float>(i),
                                 i == 1 ? "\xe2\x82" : "a" + std::to_string(i)});
        }
        tokens.logprobs.push_back(logprob);
      }
      ++sequence.next;
      batch.sequences.push_back(std::move(tokens));
    }
    if (!batch.sequences.empty()) send(batch);
    for (const ipc::Finished& end : finished) {
      sequences_.erase(end.request);
      send(end);
    }
    if (draining_ && sequences_.empty()) {
      draining_ = false;
      send(ipc::Drained{});
    }
  }

  void obey(const Sequence& sequence, const ipc::TokenBatch& batch) {
    auto due = [&](const std::string& word) {
      for (std::size_t at = 0; (at = sequence.prompt.find(word + "@", at)) != std::string::npos;
           ++at) {
        std::uint32_t index = *order(sequence.prompt.substr(at), word);
        if (sequence.next == index && sequence.given < index) return true;
      }
      return false;
    };
    if (due("kill") || due("exit") || due("device") || due("hang")) {
      if (!batch.sequences.empty()) send(batch);
    }
    if (due("kill")) die_by_signal();
    if (due("exit")) std::exit(3);
    if (due("device")) std::exit(4);
    if (due("hang")) {
      while (true)
        std::this_thread::sleep_for(milliseconds(1000));
    }
    if (due("gap")) skew_ = 1;
    if (due("garbage") || due("lie")) {
      auto room = channel_.try_reserve(64);
      if (room.ok() && room->size() >= 64) {
        std::memset(room->data(), 0xee, 64);
        (void)channel_.commit(64);
      }
      if (due("lie")) die_by_signal();
      std::this_thread::sleep_for(milliseconds(5000));
    }
  }

  std::uint32_t base() const { return other_ ? 5000 : 1000; }

  ipc::Channel& channel_;
  std::string device_;  // in the form of --device
  bool other_;
  std::string broken_model_;  // a file; empty: none
  bool stands_by_, without_units_;
  std::map<RequestId, Sequence> sequences_;
  std::vector<ipc::Embed> held_;  // to be answered
  std::uint64_t step_ = 0;
  std::uint32_t skew_ = 0;
  bool draining_ = false;
  ipc::Ready ready_;
};

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc > 1 && std::strcmp(argv[1], "--find-devices") == 0) {
    // Its device 0 is the one with "GPU" in its name, and the one that `auto` takes.
    for (int i = 2; i < argc; ++i) {
      const std::string text = argv[i];
      const bool first = text == "auto" || text.find("GPU") != std::string::npos;
      std::printf("%s %s\n", first ? "0" : text.c_str(), text.c_str());
    }
    return 0;
  }
  ipc::InheritedDescriptors inherited;
  config::IpcSettings settings;
  std::string broken_model, device;
  bool other = false, stands_by = false, without_units = false;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--model") == 0) {
      const std::string model = argv[i + 1];
      other = model.find("other", model.rfind('/') + 1) != std::string::npos;
      if (model.find("broken", model.rfind('/') + 1) != std::string::npos) broken_model = model;
    }
    if (std::strcmp(argv[i], "--device") == 0) device = argv[i + 1];
    stands_by |= std::strcmp(argv[i], "--standby") == 0;
    without_units |= std::strcmp(argv[i + 1], "engine.matrix_units=off") == 0;
    if (std::strcmp(argv[i], "--channel") == 0) inherited.socket = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--region") == 0) inherited.region = std::atoi(argv[i + 1]);
    if (std::strncmp(argv[i + 1], "ipc.ring_kib=", 13) == 0) {
      settings.ring_kib = static_cast<std::uint32_t>(std::atoi(argv[i + 1] + 13));
    }
  }
  settings.transport = inherited.region >= 0 ? config::Transport::kShm : config::Transport::kStdio;
  if (std::getenv("BULKHEAD_API_KEY") != nullptr) return 8;  // a worker must not learn it
  for (int fd = 5; fd < 256; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) return 9;  // nothing else may be inherited
  }
  if (!environment("FAKE_THREAD").empty())
    std::thread([] { std::this_thread::sleep_for(std::chrono::hours(24)); }).detach();
  auto channel = ipc::open_worker_channel(inherited, settings);
  if (!channel.ok()) {
    std::fprintf(stderr, "fake worker: %s\n", channel.error().message().c_str());
    return 10;
  }
  std::printf("a library that prints to stdout harms nothing\n");
  std::fflush(stdout);
  Worker(**channel, device, other, broken_model, stands_by, without_units).run();
}
