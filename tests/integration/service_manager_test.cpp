// The daemon under a service manager that wants to be told: a socket that stands for systemd's.
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

class NotifySocket {
 public:
  explicit NotifySocket(std::string path) : path_(std::move(path)) {
    fd_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const timeval patience{60, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    ::unlink(path_.c_str());
    bound_ = ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~NotifySocket() { ::unlink(path_.c_str()); }

  bool bound() const { return bound_; }
  const std::string& path() const { return path_; }
  // The next message; empty: none came.
  std::string receive() {
    char bytes[512];
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    return got <= 0 ? "" : std::string(bytes, static_cast<std::size_t>(got));
  }
  // The next message that is not the watchdog's.
  std::string receive_news() {
    for (;;) {
      std::string message = receive();
      if (message != "WATCHDOG=1") return message;
    }
  }

 private:
  std::string path_;
  UniqueFd fd_;
  bool bound_ = false;
};

TEST(ServiceManager, IsToldOfReadinessLifeAndTheEnd) {
  NotifySocket manager("/tmp/bulkhead-notify-" + std::to_string(::getpid()));
  ASSERT_TRUE(manager.bound());
  Serving serving = serve({}, {{"NOTIFY_SOCKET", manager.path()}, {"WATCHDOG_USEC", "200000"}});
  EXPECT_EQ(manager.receive(),
            "READY=1\nSTATUS=listening on http://127.0.0.1:" + std::to_string(serving.port));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(manager.receive(), "WATCHDOG=1");
  // It is the daemon's business alone.
  std::ifstream file("/proc/" + std::to_string(serving.worker()["pid"].get<int>()) + "/environ");
  const std::string environment(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(environment, "");
  EXPECT_EQ(environment.find("NOTIFY_SOCKET"), std::string::npos);
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(manager.receive_news(), "STOPPING=1\nSTATUS=finishing 0 request(s)");
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

TEST(ServiceManager, ThatIsGoneOrNonsenseChangesNothing) {
  for (const char* name : {"/nonexistent/socket", "relative", "@", ""}) {
    Serving serving = serve({}, {{"NOTIFY_SOCKET", name}, {"WATCHDOG_USEC", "nonsense"}});
    EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200) << name;
  }
}

}  // namespace
}  // namespace bulkhead::test
