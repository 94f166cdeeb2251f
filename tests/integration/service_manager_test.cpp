// The daemon under a service manager. The test's sockets play systemd's: one receives messages about the daemon's
// life, and one listens for the daemon.
#include <netinet/in.h>
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
  // Returns the next message; empty: none came.
  std::string receive() {
    char bytes[512];
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    return got <= 0 ? "" : std::string(bytes, static_cast<std::size_t>(got));
  }
  // Returns the next message that is not from the watchdog.
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

TEST(ServiceManager, IsNotifiedOfReadinessLifeAndTheEnd) {
  NotifySocket manager("/tmp/bulkhead-notify-" + std::to_string(::getpid()));
  ASSERT_TRUE(manager.bound());
  Serving serving = serve({}, {{"NOTIFY_SOCKET", manager.path()}, {"WATCHDOG_USEC", "200000"}});
  EXPECT_EQ(manager.receive(),
            "READY=1\nSTATUS=listening on http://127.0.0.1:" + std::to_string(serving.port));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(manager.receive(), "WATCHDOG=1");
  // The variable is meant for the daemon alone.
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

// A socket of the manager, which outlives the daemons that get it.
class ManagersSocket {
 public:
  ManagersSocket(int type, std::uint32_t host) : fd_(::socket(AF_INET, type | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(host);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    if (type == SOCK_STREAM) {
      EXPECT_EQ(::listen(fd_.get(), 16), 0);
    }
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  std::uint16_t port() const { return port_; }
  Daemon::Options options() const {
    Daemon::Options options;
    options.listener = fd_.get();
    return options;
  }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

TEST(ServiceManager, HandsOverASocketAndNobodyIsRefusedBetweenTwoDaemons) {
  const ManagersSocket socket(SOCK_STREAM, INADDR_LOOPBACK);
  for (int daemons = 0; daemons < 2; ++daemons) {
    HttpClient early(socket.port());  // no daemon runs yet
    ASSERT_TRUE(early.connected());
    ASSERT_TRUE(early.send("GET", "/livez"));
    Serving serving = serve({}, {}, socket.options());
    EXPECT_EQ(serving.port, socket.port());
    EXPECT_EQ(early.receive().status, 200);
    EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 3}}).status, 200);
    // The worker has neither the socket nor the variables.
    const std::string worker = "/proc/" + std::to_string(serving.worker()["pid"].get<int>());
    std::ifstream file(worker + "/environ");
    const std::string environment(std::istreambuf_iterator<char>(file), {});
    EXPECT_NE(environment, "");
    EXPECT_EQ(environment.find("LISTEN_"), std::string::npos);
    serving.daemon->signal(SIGTERM);
    EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
  }
}

TEST(ServiceManager, WhoseSocketIsOfNoUseGetsAnErrorThatSaysWhatToWrite) {
  const auto refusal = [](const ManagersSocket& socket) {
    Daemon::Options options = socket.options();
    options.environment["BULKHEAD_WORKER"] = FAKE_WORKER;
    Daemon daemon(BULKHEADD, options);
    EXPECT_EQ(daemon.wait_until_listening(), 0);
    EXPECT_EQ(daemon.wait_for_exit(), 1);
    return daemon.log();
  };
  EXPECT_NE(refusal(ManagersSocket(SOCK_DGRAM, INADDR_LOOPBACK)).find("the socket unit needs ListenStream="),
            std::string::npos);
  EXPECT_NE(refusal(ManagersSocket(SOCK_STREAM, INADDR_ANY))
                .find("socket listens at 0.0.0.0, but server.host is 127.0.0.1: write the same address in both"),
            std::string::npos);
}

// The variables were meant for another process.
TEST(ServiceManager, DescriptorsOfAnotherProcessAreNotTaken) {
  Serving serving = serve({}, {{"LISTEN_FDS", "1"}, {"LISTEN_PID", "1"}});
  EXPECT_EQ(serving.complete({{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
}

}  // namespace
}  // namespace bulkhead::test
