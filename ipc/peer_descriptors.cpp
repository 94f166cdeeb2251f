#include "ipc/peer_descriptors.hpp"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "config/base/quiet_thread.hpp"

namespace bulkhead::ipc {
namespace {

constexpr std::chrono::seconds kIdle{1};    // then an idle thread ends
constexpr int kMostPackets = 4096;          // in a queue; the kernel's limit is some hundreds
constexpr blkcnt_t kSmallFileBlocks = 128;  // of 512 bytes
constexpr std::size_t kMostOpened =
    256;  // descriptors that one thread may take out of sockets within sockets

#ifndef ANON_INODE_FS_MAGIC
constexpr auto ANON_INODE_FS_MAGIC = 0x09041934;
#endif

bool closes_at_once(int fd) {
  struct stat status {};
  struct statfs system {};
  if (::fstat(fd, &status) != 0 || ::fstatfs(fd, &system) != 0) return true;  // not open
  if (system.f_type == ANON_INODE_FS_MAGIC || system.f_type == PIPEFS_MAGIC) return true;
  if (S_ISCHR(status.st_mode) && major(status.st_rdev) == 1) return true;  // /dev/null and its like
  // The kernel frees a file's pages with its last descriptor: 0.1 s and more for each gigabyte.
  return S_ISREG(status.st_mode) && system.f_type == TMPFS_MAGIC &&
         status.st_blocks <= kSmallFileBlocks;
}

int socket_option(int fd, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

// Takes everything out of an AF_UNIX socket's queue, packet by packet, when nothing more can come.
class Emptied {
 public:
  explicit Emptied(int fd) : fd_(fd), packets_(socket_option(fd, SO_TYPE) != SOCK_STREAM) {
    // An empty packet looks like the end of the queue, except that it has its sender's credentials.
    const int on = packets_;
    ::setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    ::shutdown(fd, SHUT_RDWR);
  }
  // Returns false at the end. `into` gets the next packet's descriptors, perhaps none.
  bool next(std::vector<UniqueFd>& into) {
    char bytes[4096];
    alignas(
        cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxScmFds) + CMSG_SPACE(3 * sizeof(int))];
    iovec vector{bytes, sizeof bytes};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    for (int failures = 0; failures < kMostPackets; ++failures) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t size = ::recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (size < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
      if (size < 0 || (size == 0 && (!packets_ || message.msg_controllen == 0))) return false;
      into = received_with(message).fds;
      return true;
    }
    return false;
  }

 private:
  int fd_;
  bool packets_;
};

}  // namespace

ReceivedWith received_with(msghdr& message) {
  ReceivedWith all;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
      all.something_else = true;
      continue;
    }
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const auto take = [c](std::size_t i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      return UniqueFd(fd);
    };
    try {
      all.fds.reserve(all.fds.size() + count);
    } catch (const std::bad_alloc&) {
      for (std::size_t i = 0; i < count; ++i)
        take(i).reset();  // else they would stay open for ever
      throw;
    }
    for (std::size_t i = 0; i < count; ++i)
      all.fds.push_back(take(i));
  }
  return all;
}

void PeerCloser::close_for_good(UniqueFd first) {
  std::vector<UniqueFd> left, found;
  left.push_back(std::move(first));
  for (int packets = 0; !left.empty();) {
    const int fd = left.back().get();
    const int domain = socket_option(fd, SO_DOMAIN);
    if (domain == AF_UNIX && left.size() < kMostOpened && packets < kMostPackets &&
        Emptied(fd).next(found)) {
      ++packets;
      for (UniqueFd& inner : found)
        left.push_back(std::move(inner));
      found.clear();
      continue;
    }
    if (domain >= 0) {
      const linger none{0, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    left.pop_back();
  }
}

void PeerCloser::add(UniqueFd fd) {
  std::unique_lock lock(mutex_);
  try {
    waiting_.push_back(std::move(fd));
  } catch (const std::bad_alloc&) {
    // A destructor may have called this, so it closes the descriptor here.
    lock.unlock();
    return fd.reset();
  }
  if (waiting_.size() <= idle_) return wake_.notify_one();
  if (threads_ == kMostThreads || start() || threads_ != 0) return;
  const UniqueFd here = std::move(waiting_.back());  // if no thread can be started, close it here
  waiting_.pop_back();
  lock.unlock();
}

bool PeerCloser::start() {
  try {
    quiet_thread([self = shared_from_this()] { self->run(); }).detach();
  } catch (const std::exception&) {  // the system has no thread, or there is no memory for one
    return false;
  }
  ++threads_;
  return true;
}

void PeerCloser::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool more = wake_.wait_for(lock, kIdle, [this] { return !waiting_.empty(); });
    --idle_;
    if (!more) break;
    UniqueFd fd = std::move(waiting_.front());
    waiting_.pop_front();
    ++busy_;
    lock.unlock();
    try {
      how_(std::move(fd));
    } catch (const std::bad_alloc&) {
      // The descriptor, and those out of its queue, are closed by now.
    }
    lock.lock();
    --busy_;
  }
  --threads_;
}

std::size_t PeerCloser::unclosed() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() + busy_;
}

void PeerCloser::close(UniqueFd fd) {
  if (!fd.valid() || closes_at_once(fd.get())) return;
  add(std::move(fd));
}

void PeerCloser::close_lot(std::vector<UniqueFd> fds) {
  if (fds.empty()) return;
  const std::lock_guard lock(mutex_);
  const bool more = idle_ == 0 && threads_ < kMostThreads && start();
  if (!more && threads_ == 0) return;  // if no thread can be started, close them here
  try {
    for (UniqueFd& fd : fds)
      waiting_.push_back(std::move(fd));
  } catch (const std::bad_alloc&) {  // close the rest here
  }
  wake_.notify_one();
}

void PeerCloser::close_received(msghdr& message) {
  for (UniqueFd& fd : received_with(message).fds)
    close(std::move(fd));
}

void PeerCloser::close_socket(UniqueFd socket, pid_t maker) {
  if (!socket.valid() || maker != ::getpid()) return;
  Emptied queue(socket.get());
  std::vector<UniqueFd> found;
  for (int packet = 0; queue.next(found); ++packet) {
    for (UniqueFd& fd : found)
      close(std::move(fd));
    if (packet == kMostPackets || full()) return add(std::move(socket));
  }
}

}  // namespace bulkhead::ipc
