#include "tests/support/worker_process.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/kernels.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

constexpr int kChannel = 3, kRegion = 4;
constexpr std::chrono::milliseconds kSendTimeout{10000};

// Returns the pool of the model that a worker with these arguments loads.
std::string pool_of_arguments(const std::vector<std::string>& arguments) {
  const auto option = std::ranges::find(arguments, "--model");
  if (option == arguments.end() || option + 1 == arguments.end()) return "builtin";
  return std::filesystem::path(*(option + 1)).stem().string();
}

std::filesystem::path cache_folder(const std::string& pool) {
  return std::filesystem::temp_directory_path() / "bulkhead-test-cache" / pool;
}

// Copies the descriptor to a number above those that the child's descriptors get.
int high_copy(const UniqueFd& fd) {
  return fd.valid() ? ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 20) : -1;
}

}  // namespace

WorkerProcess::WorkerProcess(const std::string& program, std::vector<std::string> arguments,
                             const config::IpcSettings& settings) {
  auto pair = ipc::make_channel_pair(settings);
  if (!pair.ok()) {
    ADD_FAILURE() << pair.error().message();
    return;
  }
  channel_ = std::move(pair->daemon);
  const int socket = high_copy(pair->worker_socket), region = high_copy(pair->worker_region);
  const int input = high_copy(pair->worker_stdin), output = high_copy(pair->worker_stdout);
  arguments.insert(arguments.begin(), program);
  arguments.insert(arguments.end(), {"--channel", std::to_string(kChannel)});
  if (region >= 0) arguments.insert(arguments.end(), {"--region", std::to_string(kRegion)});
  pool_ = pool_of_arguments(arguments);
  lend_kernels(cache_folder(pool_), pool_);
  arguments.insert(arguments.end(), {"--cache", cache_folder(pool_).string()});
  std::vector<char*> argv;
  for (std::string& argument : arguments)
    argv.push_back(argument.data());
  argv.push_back(nullptr);

  pid_ = ::fork();
  if (pid_ == 0) {
    if (input >= 0) ::dup2(input, STDIN_FILENO);
    if (output >= 0) ::dup2(output, STDOUT_FILENO);
    ::dup2(socket, kChannel);
    if (region >= 0) ::dup2(region, kRegion);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  for (const int fd : {socket, region, input, output}) {
    if (fd >= 0) ::close(fd);
  }
}

WorkerProcess::~WorkerProcess() {
  keep_kernels(cache_folder(pool_), pool_);
  if (pid_ <= 0) return;
  send_signal(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void WorkerProcess::send(const ipc::ToWorker& message) {
  const Status sent = ipc::send(*channel_, message, kSendTimeout);
  EXPECT_TRUE(sent.ok()) << (sent.ok() ? "" : sent.error().message());
}

bool WorkerProcess::receive_until(const std::function<bool()>& done, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (closed_) return false;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      ADD_FAILURE() << "nothing more came in " << timeout.count() << " s";
      return false;
    }
    auto readable = ipc::wait_readable(*channel_, std::chrono::microseconds(0), left);
    if (!readable.ok()) {
      EXPECT_EQ(readable.error().code(), ErrorCode::kUnavailable) << readable.error().message();
      closed_ = true;
      return done();
    }
    if (!*readable) continue;
    auto record = channel_->try_receive();
    if (!record.ok() || record->empty()) continue;
    auto message = ipc::decode_from_worker(*record);
    channel_->release();
    if (!message.ok()) {
      ADD_FAILURE() << message.error().message();
      return false;
    }
    take(*std::move(message));
  }
  return true;
}

std::string WorkerProcess::why_not_ready() {
  if (ready) return "it was ready";
  if (fatal) return fatal->message;
  const std::string last = progress.empty() ? "nothing" : progress.back().stage;
  return closed_ ? "exit code " + std::to_string(wait_exit()) + " after " + last
                 : "still at " + last;
}

int WorkerProcess::wait_exit() {
  if (pid_ <= 0) {  // waitpid() would take any child for a pid of -1
    ADD_FAILURE() << "there is no process to wait for";
    return -1;
  }
  const bool closed = channel_ == nullptr || receive_until([this] { return closed_; });
  if (!closed) send_signal(pid_, SIGKILL);  // the worker hangs, and the test has failed
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void WorkerProcess::take(ipc::FromWorker message) {
  if (auto* first = std::get_if<ipc::Hello>(&message)) {
    hello = *first;
  } else if (auto* step = std::get_if<ipc::Progress>(&message)) {
    progress.push_back(*step);
  } else if (auto* loaded = std::get_if<ipc::Ready>(&message)) {
    ready = *loaded;
  } else if (auto* last = std::get_if<ipc::Fatal>(&message)) {
    fatal = *last;
  } else if (auto* facts = std::get_if<ipc::Stats>(&message)) {
    stats = *facts;
  } else if (auto* accepted = std::get_if<ipc::Accepted>(&message)) {
    answers[accepted->request].accepted = *accepted;
  } else if (auto* finished = std::get_if<ipc::Finished>(&message)) {
    WorkerAnswer& answer = answers[finished->request];
    answer.text += finished->text;
    answer.finished = *finished;
  } else if (auto* failed = std::get_if<ipc::Failed>(&message)) {
    answers[failed->request].failed = *failed;
  } else if (auto* batch = std::get_if<ipc::TokenBatch>(&message)) {
    for (ipc::SequenceTokens& sequence : batch->sequences) {
      WorkerAnswer& answer = answers[sequence.request];
      EXPECT_TRUE(answer.accepted.has_value());
      EXPECT_FALSE(answer.ended());
      answer.tokens.insert(answer.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
      answer.text += sequence.text;
      answer.logprobs.insert(answer.logprobs.end(), sequence.logprobs.begin(),
                             sequence.logprobs.end());
    }
  } else {
    others.push_back(std::move(message));
  }
}

}  // namespace bulkhead::test
