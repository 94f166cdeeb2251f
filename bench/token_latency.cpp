#include "bench/token_latency.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json.hpp>

#include "bench/served_stream.hpp"
#include "ipc/channel.hpp"
#include "ipc/messages.hpp"

namespace bulkhead::bench {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kPaceVariable = "BULKHEAD_BENCH_PACE_US";
constexpr const char* kFlushVariable = "BULKHEAD_BENCH_FLUSH_TOKENS";
constexpr milliseconds kPatience{20000};
constexpr std::size_t kStampDigits = 16;

void stamp(std::string& text) {
  char digits[kStampDigits];
  std::uint64_t now = now_ns();
  for (std::size_t i = kStampDigits; i-- > 0; now >>= 4)
    digits[i] = "0123456789abcdef"[now & 15];
  text.append(digits, kStampDigits);
}

class StampingWorker {
 public:
  explicit StampingWorker(ipc::Channel& channel) : channel_(channel) {}

  Status run() {
    ipc::Hello hello;
    hello.pid = static_cast<std::uint32_t>(::getpid());
    BULKHEAD_RETURN_IF_ERROR(ipc::send(channel_, ipc::FromWorker{hello}, kPatience));
    ipc::Ready ready;
    ready.model_name = ready.architecture = ready.device = ready.numerics_id = "stamps";
    ready.context_limit = 1U << 24;
    ready.vocabulary_size = 1U << 20;
    BULKHEAD_RETURN_IF_ERROR(ipc::send(channel_, ipc::FromWorker{ready}, kPatience));
    std::uint64_t due = now_ns();
    while (!shutdown_) {
      channel_.beat(++beats_);
      if (batch_.sequences.empty()) {
        BULKHEAD_TRY(const bool readable,
                     ipc::wait_readable(channel_, std::chrono::microseconds(0), milliseconds(500)));
        (void)readable;
        due = now_ns();
      }
      BULKHEAD_RETURN_IF_ERROR(receive());
      if (batch_.sequences.empty()) continue;
      // Sleeps in between, like a worker that waits for its device.
      due += pace_ns_;
      const timespec until{static_cast<time_t>(due / 1'000'000'000U),
                           static_cast<long>(due % 1'000'000'000U)};
      if (pace_ns_ != 0) ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
      BULKHEAD_RETURN_IF_ERROR(step());
    }
    return {};
  }

 private:
  Status receive() {
    for (;;) {
      BULKHEAD_TRY(const std::span<const std::byte> record, channel_.try_receive());
      if (record.empty()) return {};
      BULKHEAD_TRY(const ipc::ToWorker message, ipc::decode_to_worker(record));
      channel_.release();
      if (const auto* submit = std::get_if<ipc::Submit>(&message)) {
        const auto& prompt = std::get<std::vector<ipc::TokenId>>(submit->prompt);
        BULKHEAD_RETURN_IF_ERROR(ipc::send(
            channel_, ipc::FromWorker{ipc::Accepted{submit->request, prompt, submit->max_tokens}},
            kPatience));
        batch_.sequences.emplace_back().request = submit->request;
        limit_ = submit->max_tokens;
      } else if (const auto* ping = std::get_if<ipc::Ping>(&message)) {
        BULKHEAD_RETURN_IF_ERROR(
            ipc::send(channel_, ipc::FromWorker{ipc::Pong{ping->nonce}}, kPatience));
      } else if (std::holds_alternative<ipc::Shutdown>(message)) {
        shutdown_ = true;
      }
    }
  }

  // Sends the next tokens of every sequence in one record.
  Status step() {
    bool ended = false;
    for (ipc::SequenceTokens& sequence : batch_.sequences) {
      sequence.first_index += static_cast<std::uint32_t>(sequence.tokens.size());
      const std::uint32_t count =
          sequence.first_index == 0 ? 1 : std::min(flush_tokens_, limit_ - sequence.first_index);
      sequence.tokens.assign(count, 7);
      sequence.text.clear();
      for (std::uint32_t i = 0; i < count; ++i)
        stamp(sequence.text);
      ended |= sequence.first_index + count == limit_;
    }
    BULKHEAD_RETURN_IF_ERROR(ipc::send(channel_, batch_, kPatience));
    if (!ended) return {};
    std::erase_if(batch_.sequences, [&](const ipc::SequenceTokens& sequence) {
      if (sequence.first_index + sequence.tokens.size() < limit_) return false;
      ipc::Finished finished;
      finished.request = sequence.request;
      finished.reason = ipc::FinishReason::kLength;
      finished.completion_tokens = limit_;
      (void)ipc::send(channel_, ipc::FromWorker{finished}, kPatience);
      return true;
    });
    return {};
  }

  static std::uint64_t number(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  }

  ipc::Channel& channel_;
  const std::uint64_t pace_ns_ = number(kPaceVariable, 0) * 1000;
  const std::uint32_t flush_tokens_ = static_cast<std::uint32_t>(number(kFlushVariable, 1));
  ipc::TokenBatch batch_;
  std::uint32_t limit_ = 0;  // the same for all requests
  std::uint64_t beats_ = 0;
  bool shutdown_ = false;
};

}  // namespace

Result<TokenLatency> measure_token_latency(const TokenLatencyPlan& plan) {
  const std::string transport = plan.transport == config::Transport::kShm ? "shm" : "stdio";
  BULKHEAD_TRY(const auto daemon,
               DaemonProcess::start({"--set", "ipc.transport=" + transport},
                                    {{"BULKHEAD_WORKER", own_program()},
                                     {kPaceVariable, std::to_string(plan.pace_us)},
                                     {kFlushVariable, std::to_string(plan.flush_tokens)}}));
  const std::vector<std::string> bodies(
      plan.streams,
      json{{"prompt", {1, 2, 3}}, {"max_tokens", plan.tokens}, {"stream", true}, {"temperature", 0}}
          .dump());
  TokenLatency result;
  double seconds = 0;
  std::uint64_t cpu = 0;
  for (int repeat = -1; repeat < plan.repeats; ++repeat) {  // the first repeat warms up
    const std::uint64_t cpu_before = cpu_ns(daemon.pid());
    BULKHEAD_TRY(const std::vector<Stream> streams, stream_completions(daemon.port(), bodies));
    if (repeat < 0) continue;
    cpu += cpu_ns(daemon.pid()) - cpu_before;
    std::uint64_t first = UINT64_MAX, last = 0;
    for (const Stream& stream : streams) {
      for (const Event& event : stream.events) {
        const std::size_t at = event.data.find("\"text\":\"");
        if (at == std::string::npos) continue;
        const std::string_view text =
            std::string_view(event.data).substr(at + 8, event.data.find('"', at + 8) - at - 8);
        if (text.size() < kStampDigits) continue;  // this is the end of the answer
        const std::string_view digits = text.substr(text.size() - kStampDigits);
        std::uint64_t written = 0;
        std::from_chars(digits.data(), digits.data() + digits.size(), written, 16);
        result.samples_ns.push_back(event.at_ns - written);
        first = std::min(first, event.at_ns);
        last = std::max(last, event.at_ns);
      }
    }
    seconds += static_cast<double>(last - first) / 1e9;
  }
  const double tokens = double{1} * plan.streams * plan.tokens * plan.repeats;
  result.tokens_per_s = seconds > 0 ? tokens / seconds : 0;
  result.daemon_cpu_us_per_token = static_cast<double>(cpu) / 1e3 / tokens;
  return result;
}

bool run_as_worker(int argc, char** argv, int& exit_code) {
  ipc::InheritedDescriptors inherited;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--channel") inherited.socket = std::atoi(argv[i + 1]);
    if (word == "--region") inherited.region = std::atoi(argv[i + 1]);
  }
  if (inherited.socket < 0) return false;
  std::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto channel = ipc::open_worker_channel(inherited, config::IpcSettings{});
  exit_code = !channel.ok() || !StampingWorker(**channel).run().ok() ? 1 : 0;
  return true;
}

}  // namespace bulkhead::bench
