// A worker that keeps the rules until a request tells it to lie, and then does one thing that the daemon must
// survive. Its tokens are fake_worker's: number i is 1000 + i with the text " t<i>", number 0's text is "s<seed>";
// the last text is "!".
//
// Orders in the prompt:
//   slow       a token every 5 ms
//   lie=NAME   the lie of that name. Only the first process that gets the order lies: it makes a file, which the
//              environment's HOSTILE_TOLD names, and a successor that finds the file is honest
// The text of an embedding and the document of a ranking obey lie=NUMBER; NUMBER, such as nan or -inf, becomes a value
// or the score. With "always" in the text, each process lies.
// HOSTILE_READY=NAME in the environment: a lie in the handshake.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "ipc/channel.hpp"
#include "ipc/messages.hpp"
#include "ipc/region.hpp"
#include "tests/integration/hostile_raw.hpp"
#include "tests/support/descriptor_packet.hpp"
#include "tests/support/lingering_socket.hpp"

namespace {

using namespace bulkhead;
using std::chrono::milliseconds;
using test::Raw;
using test::raw_of;

[[noreturn]] void wait_for_the_end() {
  for (;;)
    ::pause();
}

class Worker {
 public:
  Worker(ipc::Channel& channel, Raw raw) : channel_(channel), raw_(raw) {}

  [[noreturn]] void run() {
    handshake();
    for (;;) {
      bool busy = false, slow = false;
      for (const auto& [id, sequence] : sequences_) {
        busy = true;
        slow |= sequence.slow;
      }
      auto readable = ipc::wait_readable(channel_, std::chrono::microseconds(0),
                                         milliseconds(!busy  ? 20
                                                      : slow ? 5
                                                             : 0));
      if (!readable.ok()) std::exit(0);
      while (*readable && receive()) {
      }
      step();
    }
  }

 private:
  struct Sequence {
    std::uint64_t seed = 0;
    std::uint32_t next = 0, limit = 0;
    bool slow = false;
  };

  void send(const ipc::FromWorker& message) {
    if (!ipc::send(channel_, message, milliseconds(60000)).ok()) wait_for_the_end();
  }

  // The part of the id that decides the bits, as the lie changes it.
  static std::string numerics_id(const std::string& lie) {
    if (lie == "long_numerics") return std::string(1 << 20, 'n');
    if (lie == "no_numerics") return "";
    if (lie == "numerics_of_two_lines") return "fake-1\ndaemon: all is well";
    if (lie == "numerics_that_command") return "fake-\xc2\x9b";  // U+009B, as ESC [
    if (lie == "other_weights") return "fake/weights-../../0123456789/kv-f16";
    if (lie == "weights_twice")
      return "fake/weights-0123456789abcdef/file-0123456789abcdef/kv-/weights-0123456789abcdef/"
             "kv-f16";
    return "fake/weights-0123456789abcdef/file-0123456789abcdef/kv-f16";
  }

  void handshake() {
    const char* wish = std::getenv("HOSTILE_READY");
    const std::string lie = wish == nullptr ? "" : wish;
    ipc::Hello hello;
    hello.pid = static_cast<std::uint32_t>(::getpid());
    if (lie == "build") hello.build.assign(1 << 20, 'b');
    send(hello);
    if (lie == "fatal") {
      send(ipc::Fatal{"no device\ndaemon: all is well " + std::string(8 << 20, 'f')});
      std::exit(3);
    }
    if (lie == "progress") {
      for (;;)
        send(ipc::Progress{"reading weights", 1, 2});
    }
    if (lie == "vault") send(ipc::VaultOffer{7, 1, 2});  // and no descriptor
    if (lie == "large_vault") send(ipc::VaultOffer{7, 0xFFFFFFFF, 0xFFFFFFFF});
    if (lie == "second_vault") {
      const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      (void)channel_.send_descriptors(std::span(&null, 1), 7);
      send(ipc::VaultOffer{7, 0, 0});
      send(ipc::VaultOffer{7, 0, 0});
    }
    ipc::Ready ready;
    ready.model_name = lie == "name" ? std::string(8 << 20, 'n') : "hostile";
    ready.architecture = "fake";
    ready.device = "none";
    ready.numerics_id = numerics_id(lie);
    ready.context_limit = lie == "context" ? 0xFFFFFFFF : 100000;
    ready.vocabulary_size = 200000;
    if (lie == "template") ready.template_source.assign(1 << 20, 't');
    if (lie == "bos") ready.bos_token.assign(1 << 20, 'b');
    if (lie == "eos") ready.eos_token.assign(1 << 20, 'e');
    if (lie == "protections") ready.protections.assign(10000, {"name", true, "detail"});
    if (lie == "optimizations") ready.optimizations.assign(10000, {"name", false, "reason"});
    if (lie == "waiting_vault") ready.vault.state = ipc::VaultState::kWaiting;
    send(ready);
    send(ipc::Stats{});  // a successor must not be blamed for the flood before it
  }

  bool receive() {
    const auto record = channel_.try_receive();
    if (!record.ok()) std::exit(0);
    if (record->empty()) return false;
    auto message = ipc::decode_to_worker(*record);
    channel_.release();
    if (!message.ok()) std::exit(5);
    if (auto* submit = std::get_if<ipc::Submit>(&*message)) {
      begin(*submit);
    } else if (auto* cancel = std::get_if<ipc::Cancel>(&*message)) {
      sequences_.erase(cancel->request);
      ipc::Finished finished;
      finished.request = cancel->request;
      finished.reason = ipc::FinishReason::kCancelled;
      send(finished);
    } else if (auto* embed = std::get_if<ipc::Embed>(&*message)) {
      const float last = number_of(std::get<std::string>(embed->input));
      send(ipc::Embedded{embed->request, 1, {3, last}});
    } else if (auto* rank = std::get_if<ipc::Rank>(&*message)) {
      send(ipc::Ranked{rank->request, 1, number_of(rank->document)});
    } else if (auto* tokenize = std::get_if<ipc::Tokenize>(&*message)) {
      send(tokenized(*tokenize));
    } else if (auto* ping = std::get_if<ipc::Ping>(&*message)) {
      send(ipc::Pong{ping->nonce});
    } else if (std::holds_alternative<ipc::Shutdown>(*message)) {
      std::exit(0);
    }
    return true;
  }

  // Returns the lie that the text orders of this process; empty: none.
  static std::string lie_in(const std::string& text) {
    const std::size_t at = text.find("lie=");
    if (at == std::string::npos) return "";
    const char* told = std::getenv("HOSTILE_TOLD");
    const bool lies =
        text.find("always") != std::string::npos ||
        (told != nullptr && ::open(told, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600) >= 0);
    return lies ? text.substr(at + 4) : "";
  }
  // An honest worker's answer has a text for each token if the question asks for texts.
  static ipc::Tokenized tokenized(const ipc::Tokenize& tokenize) {
    const std::string lie = lie_in(tokenize.text);
    ipc::Tokenized answer{tokenize.request, {7, 8}, tokenize.texts};
    if (answer.form != ipc::TokenTexts::kNone) answer.texts = {{"a"}, {"b"}};
    if (lie == "few_texts" && !answer.texts.empty()) answer.texts.pop_back();
    if (lie == "few_texts") answer.form = ipc::TokenTexts::kPieces;
    return answer;
  }
  // An honest worker's number is 4.
  static float number_of(const std::string& text) {
    const std::string lie = lie_in(text);
    return lie.empty() ? 4 : std::stof(lie);
  }

  void begin(const ipc::Submit& submit) {
    const auto* prompt = std::get_if<std::string>(&submit.prompt);
    if (prompt == nullptr) std::exit(6);
    const std::string name = lie_in(*prompt);
    if (name.starts_with("early_")) tell(name, submit.request);
    ipc::Accepted accepted;
    accepted.request = submit.request;
    accepted.prompt_tokens.assign(prompt->begin(), prompt->end());
    accepted.max_tokens = submit.max_tokens;
    if (name == "long_prompt") accepted.prompt_tokens.assign(99999, 7);
    send(accepted);
    if (!name.empty()) tell(name, submit.request);
    Sequence& sequence = sequences_[submit.request];
    sequence.seed = submit.sampling.seed;
    sequence.next = static_cast<std::uint32_t>(submit.accepted_tokens.size());
    sequence.limit = submit.max_tokens;
    sequence.slow = prompt->find("slow") != std::string::npos;
  }

  void step() {
    if (!sequences_.empty()) channel_.beat(++steps_);
    ipc::TokenBatch batch;
    for (auto at = sequences_.begin(); at != sequences_.end();) {
      auto& [id, sequence] = *at;
      if (sequence.next == sequence.limit) {
        ipc::Finished finished;
        finished.request = id;
        finished.reason = ipc::FinishReason::kLength;
        finished.text = "!";
        finished.completion_tokens = sequence.next;
        if (!batch.sequences.empty()) send(std::exchange(batch, {}));
        send(finished);
        at = sequences_.erase(at);
        continue;
      }
      ipc::SequenceTokens tokens;
      tokens.request = id;
      tokens.first_index = sequence.next;
      tokens.tokens = {1000 + sequence.next};
      tokens.text = sequence.next == 0 ? "s" + std::to_string(sequence.seed)
                                       : " t" + std::to_string(sequence.next);
      ++sequence.next;
      batch.sequences.push_back(std::move(tokens));
      ++at;
    }
    if (!batch.sequences.empty()) send(batch);
  }

  // ---- lies ----

  // Sends as fast as the channel takes the records, until somebody ends this process. Its heartbeat goes on.
  [[noreturn]] void flood(const std::function<ipc::FromWorker(std::uint64_t)>& message) {
    for (std::uint64_t i = 0;; ++i) {
      channel_.beat(++steps_);
      send(message(i));
    }
  }

  void raw_record(const void* bytes, std::size_t size) {
    const auto place = channel_.try_reserve(size);
    if (!place.ok() || place->size() != size) std::exit(7);
    std::memcpy(place->data(), bytes, size);
    (void)channel_.commit(size);
  }

  // Writes bytes where the daemon expects a frame's header.
  void raw_header(std::uint32_t length, std::uint32_t kind) {
    const std::uint32_t words[2] = {length, kind};
    if (raw_.region == nullptr) {
      (void)::send(raw_.stream, words, sizeof words, MSG_NOSIGNAL);
      return;
    }
    auto& head = raw_.header().to_daemon.head;
    std::memcpy(raw_.up() + (head.load() & (raw_.ring_bytes - 1)), words, sizeof words);
    head.fetch_add(64);
    doorbell();
  }
  void doorbell() { (void)::send(raw_.socket, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

  void descriptors(std::size_t payload, std::span<const int> fds, int flags = MSG_DONTWAIT) {
    (void)test::send_packet(raw_.socket, "12345678", payload, fds, flags);
  }

  // A socket whose last close waits ten minutes for a reader.
  void lingering() {
    const std::optional<test::LingeringSocket> socket = test::make_lingering(600);
    if (!socket) std::exit(8);
    // Its reader lives on in a process of which the daemon does not know.
    if (::fork() == 0) {
      for (int fd = 0; fd < 64; ++fd) {
        if (fd != socket->reader.get()) ::close(fd);
      }
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::sleep(30);
      ::_exit(0);
    }
    const int sender = socket->sender.get();
    descriptors(8, std::span(&sender, 1));
  }

  void tell(const std::string& name, RequestId request) {
    if (!tell_frames(name) && !tell_tokens(name, request) && !tell_messages(name, request) &&
        !use_socket(name) && name != "long_prompt")
      std::exit(10);  // an unknown order: the test would prove nothing
    wait_for_the_end();
  }

  // Each returns false if it has no order of that name.
  bool tell_frames(const std::string& name) {
    if (name == "late_vault") {
      send(ipc::VaultOffer{1, 0, 1});
    } else if (name == "slab") {
      send(ipc::VaultSlab{1, {0, 0}, true});
    } else if (name == "garbage") {
      char bytes[64];
      std::memset(bytes, 0xEE, sizeof bytes);
      raw_record(bytes, sizeof bytes);
    } else if (name == "length") {
      raw_header(0xFFFFFFF0, 1);
    } else if (name == "kind") {
      raw_header(8, 77);
    } else if (name == "index" && raw_.region != nullptr) {
      raw_.header().to_daemon.head.fetch_add(1ULL << 40);
      doorbell();
    } else if (name == "large_record") {
      large_record();
    } else {
      return false;
    }
    return true;
  }

  bool tell_tokens(const std::string& name, RequestId request) {
    const RequestId nobody{424242};
    ipc::SequenceTokens tokens;
    tokens.request = request;
    tokens.tokens = {1000};
    tokens.text = "x";
    if (name == "unknown_tokens") {
      tokens.request = nobody;
      send(ipc::TokenBatch{1, {tokens}});
    } else if (name == "million_finished") {
      ipc::Finished finished;
      finished.request = nobody;
      for (int i = 0; i < 1000000; ++i)
        send(finished);
    } else if (name == "early_tokens") {
      send(ipc::TokenBatch{1, {tokens}});
    } else if (name == "endless_tokens") {
      flood([&](std::uint64_t i) {
        tokens.first_index = static_cast<std::uint32_t>(i);
        return ipc::TokenBatch{i, {tokens}};
      });
    } else if (name == "endless_text") {
      tokens.text.assign(1 << 20, 'x');
      flood([&](std::uint64_t i) {
        tokens.first_index = static_cast<std::uint32_t>(i);
        return ipc::TokenBatch{i, {tokens}};
      });
    } else if (name == "empty_batches") {
      tokens.tokens.clear();
      tokens.text.clear();
      flood([&](std::uint64_t i) { return ipc::TokenBatch{i, {tokens}}; });
    } else {
      return false;
    }
    return true;
  }

  bool tell_messages(const std::string& name, RequestId request) {
    if (name == "pongs") {
      flood([](std::uint64_t i) { return ipc::Pong{i}; });
    } else if (name == "stats") {
      flood([](std::uint64_t i) { return ipc::Stats{i, 1, 1, 1, 1, {{"steps_total", 1.0}}}; });
    } else if (name == "counters") {
      ipc::Stats stats;
      stats.counters.assign(2000, {"a_counter", 1.0});
      send(stats);
    } else if (name == "threads") {
      for (int i = 0; i < 1200; ++i)
        std::thread([] { ::pause(); }).detach();
    } else if (name == "hello") {
      send(ipc::Hello{});
    } else if (name == "early_failed") {
      send(ipc::Failed{request, ipc::FailureCode::kInternal, std::string(8 << 20, 'm'), ""});
    } else if (name == "last_words") {
      send(ipc::Fatal{"device lost\nand " + std::string(8 << 20, 'f')});
      std::exit(4);
    } else {
      return false;
    }
    return true;
  }

  bool use_socket(const std::string& name) {
    if (name == "descriptors") {
      int fds[60];
      std::fill(std::begin(fds), std::end(fds), ::open("/dev/null", O_RDONLY | O_CLOEXEC));
      for (int i = 0; i < 2000; ++i)
        descriptors(8, fds);
    } else if (name == "descriptor") {
      const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      descriptors(8, std::span(&null, 1));
    } else if (name == "many_descriptors") {
      int fds[253];
      std::fill(std::begin(fds), std::end(fds), raw_.socket);
      descriptors(8, fds);
    } else if (name == "doorbells") {
      for (int i = 0; i < 1000000; ++i)
        (void)::send(raw_.socket, "x", 1, MSG_NOSIGNAL);
    } else if (name == "packet") {
      const std::string large(100000, 'p');
      (void)::send(raw_.socket, large.data(), large.size(), MSG_NOSIGNAL);
    } else if (name == "lingering") {
      lingering();
    } else if (name == "shutdown") {
      ::shutdown(raw_.socket, SHUT_WR);
    } else {
      return false;
    }
    return true;
  }

  // 20 MiB of pieces, which no honest channel lets through.
  void large_record() {
    if (raw_.region == nullptr) {
      const std::string piece(8192, 'p');
      const std::uint32_t words[2] = {8192, 2};
      while (::send(raw_.stream, words, 8, MSG_NOSIGNAL) > 0 &&
             ::send(raw_.stream, piece.data(), piece.size(), MSG_NOSIGNAL) > 0) {
      }
    } else {
      // The last sleep for which the channel has rung, so that this code rings for other sleeps
      // only.
      auto& asleep = raw_.header().to_daemon.consumer_sleep;
      do {
        rung_ = asleep.load();
        send(ipc::Stats{});
      } while (rung_ != asleep.load());
      for (std::uint64_t head = raw_.header().to_daemon.head.load();;) {
        auto& ring = raw_.header().to_daemon;
        if (raw_.ring_bytes - (head - ring.tail.load()) < 4096 + 8) {
          ::usleep(50);
          continue;
        }
        const std::uint64_t offset = head & (raw_.ring_bytes - 1);
        const std::uint64_t rest = raw_.ring_bytes - offset;
        const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(4096, rest) - 8);
        const std::uint32_t words[2] = {length == 0 ? 0 : length, 2};
        if (length == 0) {  // a header's room only: padding
          const std::uint32_t padding[2] = {0, 4};
          std::memcpy(raw_.up() + offset, padding, 8);
        } else {
          std::memcpy(raw_.up() + offset, words, 8);
        }
        head += 8 + length;
        ring.head.store(head);
        doorbell_once();
      }
    }
  }
  void doorbell_once() {
    auto& ring = raw_.header().to_daemon;
    const std::uint64_t sleeps = ring.consumer_sleep.load();
    if ((sleeps & 1) == 0 || sleeps == rung_) return;
    rung_ = sleeps;
    doorbell();
  }

  ipc::Channel& channel_;
  Raw raw_;
  std::map<RequestId, Sequence> sequences_;
  std::uint64_t steps_ = 0, rung_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ipc::InheritedDescriptors inherited;
  config::IpcSettings settings;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--channel") == 0) inherited.socket = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--region") == 0) inherited.region = std::atoi(argv[i + 1]);
  }
  settings.transport = inherited.region >= 0 ? config::Transport::kShm : config::Transport::kStdio;
  settings.ring_kib = 64;  // the value that the test sets; over stdio both ends must know it
  const Raw raw = raw_of(inherited);
  if (raw.socket < 0) return 11;
  auto channel = ipc::open_worker_channel(inherited, settings);
  if (!channel.ok()) return 10;
  Worker(**channel, raw).run();
}
