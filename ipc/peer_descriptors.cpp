#include "ipc/peer_descriptors.hpp"

#include <linux/magic.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace bulkhead::ipc {
namespace {

constexpr std::size_t kMostThreads = 16;
constexpr std::chrono::seconds kIdle{1};  // then a thread ends
constexpr int kMostPackets = 4096;        // in a queue: the kernel's limit is some hundreds

#ifndef ANON_INODE_FS_MAGIC
constexpr auto ANON_INODE_FS_MAGIC = 0x09041934;
#endif

bool closes_at_once(int fd) {
  struct stat status {};
  struct statfs system {};
  if (::fstat(fd, &status) != 0 || ::fstatfs(fd, &system) != 0) return true;  // not open
  if (system.f_type == ANON_INODE_FS_MAGIC || system.f_type == PIPEFS_MAGIC) return true;
  if (S_ISCHR(status.st_mode) && major(status.st_rdev) == 1) return true;  // /dev/null and its like
  return S_ISREG(status.st_mode) && system.f_type == TMPFS_MAGIC;
}

// The threads that close. Never destroyed: one may be at it when the process ends.
class Closers {
 public:
  void add(UniqueFd fd) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(fd));
    if (waiting_.size() <= idle_) {
      wake_.notify_one();
    } else if (threads_ < kMostThreads && !start() && threads_ == 0) {
      waiting_.pop_back();  // no thread to be had: here, then
    }
  }
  void add_lot(std::vector<UniqueFd> fds) {
    const std::lock_guard lock(mutex_);
    const bool more = idle_ == 0 && threads_ < kMostThreads && start();
    if (!more && threads_ == 0) return;  // no thread to be had: here, then
    for (UniqueFd& fd : fds)
      waiting_.push_back(std::move(fd));
    wake_.notify_one();
  }

 private:
  bool start() {
    // Signals are for the threads that expect them.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
      std::thread([this] { run(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      started = false;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool more = wake_.wait_for(lock, kIdle, [this] { return !waiting_.empty(); });
      --idle_;
      if (!more) break;
      UniqueFd fd = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      end(std::move(fd));
      lock.lock();
    }
    --threads_;
  }
  static void end(UniqueFd fd) {
    int domain = 0;
    socklen_t length = sizeof domain;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return;  // no socket
    const linger none{0, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    if (domain == AF_UNIX) close_socket_to_peer(std::move(fd), ::getpid());
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<UniqueFd> waiting_;
  std::size_t threads_ = 0, idle_ = 0;
};

Closers& closers() {
  static Closers& all = *new Closers;
  return all;
}

}  // namespace

void close_from_peer(UniqueFd fd) {
  if (!fd.valid() || closes_at_once(fd.get())) return;
  closers().add(std::move(fd));
}

void close_elsewhere(std::vector<UniqueFd> fds) {
  if (!fds.empty()) closers().add_lot(std::move(fds));
}

void close_received(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      close_from_peer(UniqueFd(fd));
    }
  }
}

void close_socket_to_peer(UniqueFd socket, pid_t maker) {
  if (!socket.valid() || maker != ::getpid()) return;
  // Of packets, an empty one looks like the end of the queue, but for its sender's credentials.
  int type = 0;
  socklen_t length = sizeof type;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_TYPE, &type, &length);
  const int on = type != SOCK_STREAM;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  ::shutdown(socket.get(), SHUT_RDWR);
  for (int packet = 0;; ++packet) {
    char bytes[4096];
    alignas(
        cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxScmFds) + CMSG_SPACE(3 * sizeof(int))];
    iovec vector{bytes, sizeof bytes};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t size = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0 && (errno == EINTR || errno == ECONNRESET) && packet < kMostPackets) continue;
    if (size < 0 || (size == 0 && (on == 0 || message.msg_controllen == 0))) return;
    close_received(message);
    if (packet == kMostPackets) return closers().add(std::move(socket));
  }
}

}  // namespace bulkhead::ipc
