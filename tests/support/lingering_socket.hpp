// TCP sockets whose last close waits, because they have bytes that nobody reads (SO_LINGER). A hostile peer sends them
// to hold up the process that closes them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>

#include "config/base/unique_fd.hpp"

namespace bulkhead::test {

struct LingeringSocket {
  UniqueFd sender;  // lingers
  UniqueFd reader;  // once it is closed, the sender lingers no more
};

// The process that closes `sender` last waits for this many seconds. Empty: this machine has no TCP over
// the loopback.
inline std::optional<LingeringSocket> make_lingering(int seconds) {
  LingeringSocket made;
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  made.sender.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  const int small = 4096;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  ::setsockopt(made.sender.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  if (::bind(listener.get(), name, size) != 0 || ::getsockname(listener.get(), name, &size) != 0 ||
      ::listen(listener.get(), 1) != 0 || ::connect(made.sender.get(), name, size) != 0) {
    return std::nullopt;
  }
  made.reader.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  static constexpr char kBytes[4096] = {};
  for (int i = 0;
       i < 64 && ::send(made.sender.get(), kBytes, sizeof kBytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
       ++i) {
  }
  const linger time{1, seconds};
  if (::setsockopt(made.sender.get(), SOL_SOCKET, SO_LINGER, &time, sizeof time) != 0)
    return std::nullopt;
  return made;
}

}  // namespace bulkhead::test
