// A daemon with a worker whose memory outlives it, one undisturbed stream, and ways to kill the worker during
// another.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "config/base/unique_fd.hpp"
#include "tests/integration/crash/streams.hpp"
#include "tests/support/fixtures.hpp"
#include "worker/vault/directory.hpp"

namespace bulkhead::test {

namespace fs = std::filesystem;
inline constexpr int kTokens = 30;  // with the prompt, this is more than two pages

// A memory file that another process holds. It is found by a part of its name and, if given, by its size plus a
// driver's header.
class HeldMemory {
 public:
  HeldMemory(pid_t holder, const std::string& name, std::uint64_t bytes = 0) {
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(holder) + "/fd")) {
      std::error_code gone;
      const std::string target = fs::read_symlink(entry.path(), gone).string();
      if (gone || target.find("memfd:") == std::string::npos ||
          target.find(name) == std::string::npos)
        continue;
      UniqueFd fd(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
      struct stat status {};
      if (!fd.valid() || ::fstat(fd.get(), &status) != 0) continue;
      bytes_ = static_cast<std::size_t>(status.st_size);
      if (bytes != 0 && (bytes_ < bytes || bytes_ > bytes + kMostHeader)) continue;
      void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
      if (memory == MAP_FAILED) continue;
      memory_ = static_cast<std::byte*>(memory);
      fd_ = std::move(fd);
      return;
    }
  }
  static constexpr std::uint64_t kMostHeader = 64 << 10;
  ~HeldMemory() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  bool valid() const { return memory_ != nullptr; }
  std::span<std::byte> bytes() const { return {memory_, bytes_}; }
  const UniqueFd& fd() const { return fd_; }

 private:
  UniqueFd fd_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

inline std::size_t descriptors_of(pid_t pid) {
  return static_cast<std::size_t>(std::distance(
      fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd"), fs::directory_iterator()));
}

// Uses shared memory, which is the daemon's default.
class Vault : public testing::Test {
 protected:
  virtual const char* transport() const { return "shm"; }
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("bulkhead-vault-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Returns a copy of a model that may be deleted and changed; empty: there are no fixtures.
  std::string copy_of(const std::string& fixture) const {
    const fs::path from = fixtures() / "models" / fixture;
    if (!fs::exists(from)) return {};
    const fs::path to = folder_ / "model.gguf";
    fs::copy_file(from, to, fs::copy_options::overwrite_existing);
    return to.string();
  }

  // Replaces a file as a person would do it: by a new file under the old name.
  void replace_by(const std::string& fixture, const std::string& model) const {
    fs::copy_file(fixtures() / "models" / fixture, folder_ / "new");
    fs::rename(folder_ / "new", model);
  }

  void start(const std::string& model, std::vector<std::string> settings = {},
             std::map<std::string, std::string> environment = {}) {
    settings.push_back(std::string("ipc.transport=") + transport());
    serving_ = serve_model(model, settings, std::move(environment));
    undisturbed_ = stream(serving_.port, request_);
    ASSERT_TRUE(undisturbed_.heard.done);
    ASSERT_EQ(undisturbed_.heard.ids.size(), static_cast<std::size_t>(kTokens));
  }

  // Sends the signal to the process in the middle of a stream, whose client must not notice.
  Timed signal_in_stream(
      pid_t victim, int signal, const std::function<void()>& before = [] {}) const {
    Timed disturbed = stream(serving_.port, request_, kTokens / 2, [&] {
      before();
      send_signal(victim, signal);
    });
    EXPECT_EQ(disturbed.heard, undisturbed_.heard) << serving_.daemon->log();
    return disturbed;
  }
  // Kills the worker in the middle of a stream, and checks that another process serves afterwards.
  void kill_in_stream(const std::function<void()>& before_the_kill = [] {}) {
    const pid_t victim = serving_worker(serving_);
    const Timed killed = signal_in_stream(victim, SIGKILL, before_the_kill);
    EXPECT_NE(serving_worker(serving_), victim);
    pause_ms_ = killed.longest_pause.count();
  }

  // Stops the process and returns once none of its threads runs any more.
  static void stop(pid_t pid) {
    send_signal(pid, SIGSTOP);
    EXPECT_TRUE(Serving::eventually([&] {
      for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
        std::ifstream file(task.path() / "stat");
        const std::string stat{std::istreambuf_iterator<char>(file), {}};
        const std::size_t name_ends = stat.rfind(") ");
        if (name_ends == std::string::npos || stat[name_ends + 2] != 'T') return false;
      }
      return true;
    }));
  }

  void kill_until_a_spare_serves(pid_t first) {
    send_signal(first, SIGKILL);
    ASSERT_TRUE(Serving::eventually([&] {
      const json worker = serving_.worker();
      return worker["state"] == "ready" && worker["pid"] != first;
    })) << serving_.worker()
        << serving_.daemon->log();
  }

  void restart_failed() {
    const std::string name = serving_.worker()["name"];
    EXPECT_EQ(serving_.post("/v1/workers/" + name + "/restart", "{}").status, 202);
    serving_worker(serving_);
  }

  void restart(const std::string& body = "{}") {
    const json before = serving_.worker();
    const std::string name = before["name"];
    EXPECT_EQ(serving_.post("/v1/workers/" + name + "/restart", body).status, 202);
    ASSERT_TRUE(Serving::eventually([&] {
      const json worker = serving_.worker();
      return worker["state"] == "ready" && worker["pid"] != before["pid"];
    })) << serving_.worker()
        << serving_.daemon->log();
  }

  // Returns the spare, once it stands by with memory that it got in this way.
  json spare_with(const std::string& memory) const {
    json spare;
    EXPECT_TRUE(Serving::eventually([&] {
      const json all = json::parse(serving_.get("/v1/workers").body);
      spare = all.size() == 2 ? all[1] : json::object();
      return spare.value("state", "") == "standby" && spare["vault"].value("state", "") == memory;
    })) << serving_.get("/v1/workers").body
        << serving_.daemon->log();
    return spare;
  }

  // Returns false if device memory is not a file in memory.
  bool flip_a_weight() const {
    const HeldMemory block(serving_.daemon->pid(), "llvmpipe");
    // Skips the driver's own header.
    if (block.valid()) block.bytes()[block.bytes().size() / 3] ^= std::byte{1};
    return block.valid();
  }

  // Flips one bit of every 512 bytes in the KV pages' memory; returns false if device memory is not a file in memory.
  bool flip_pages() const {
    return change_pages(0, 512, [](std::byte& each) { each ^= std::byte{1}; });
  }
  // The same in the second half of the memory, which in tiny-qwen35moe holds saved states: the KV pages of its one
  // layer with attention come first.
  bool flip_states() const {
    return change_pages(1, 512, [](std::byte& each) { each ^= std::byte{1}; });
  }
  // Overwrites all of the KV pages' memory.
  bool fill_pages(std::byte with) const {
    return change_pages(0, 1, [with](std::byte& each) { each = with; });
  }

  // Changes the memory at regular distances, in the second half of each block, or in all of it (`half` 0).
  template <typename Change>
  bool change_pages(std::size_t half, std::size_t every, Change change) const {
    const HeldMemory directory(serving_.daemon->pid(), "bulkhead vault");
    if (!directory.valid()) return false;
    const auto opened = vault::Directory::open(directory.fd());
    EXPECT_TRUE(opened.ok());
    if (!opened.ok()) return false;
    const vault::Description& described = (*opened)->description();
    std::size_t changed = 0;
    for (std::size_t i = described.weight_blocks; i < described.block_bytes.size(); ++i) {
      const HeldMemory block(serving_.daemon->pid(), "llvmpipe", described.block_bytes[i]);
      if (!block.valid()) return false;
      // The driver's own header comes first; it is the part of the file that exceeds the block.
      const std::size_t header = block.bytes().size() - described.block_bytes[i];
      for (std::size_t at = header + half * described.block_bytes[i] / 2; at < block.bytes().size();
           at += every, ++changed)
        change(block.bytes()[at]);
    }
    return changed > 0;
  }

  // Waits, because other tests' descriptors may be in flight when the vault is to be offered.
  json vault() const {
    json told;
    Serving::eventually([&] { return (told = vault_now())["state"] != "waiting"; });
    return told;
  }
  json vault_now() const { return serving_.worker()["vault"]; }
  // Waits until the worker has loaded another model file than the one of the vault that was held.
  bool serves_a_changed_file() const {
    return Serving::eventually([&] {
      const json worker = serving_.worker(), vault = worker["vault"];
      return worker["state"] == "ready" && vault["state"] == "kept" &&
             vault.value("last_drop", "").find("the model file has changed") != std::string::npos;
    });
  }
  std::string way() const { return serving_.worker()["last_recovery"]["way"]; }

  fs::path folder_;
  Serving serving_;
  json request_ =
      request_of(true, kTokens,
                 "Once upon a time there was a little robot who lived in a house by the "
                 "sea. The robot had a friend, a small bird, and every day the two of "
                 "them went for a walk. One day the bird",
                 17);
  Timed undisturbed_;
  long long pause_ms_ = 0;
};

// What depends on how a daemon learns of a death, or on which descriptors it holds and sends.
class VaultTransports : public Vault, public testing::WithParamInterface<const char*> {
 protected:
  const char* transport() const override { return GetParam(); }
};

}  // namespace bulkhead::test
