// Sends a packet with descriptors, like a process that follows no rules.
#pragma once

#include <sys/socket.h>

#include <cstring>
#include <span>
#include <vector>

namespace bulkhead::test {

// Calls sendmsg(2) with this many bytes and with these descriptors (possibly none), and returns its result.
inline ssize_t send_packet(int socket, const void* bytes, std::size_t size,
                           std::span<const int> descriptors, int flags = MSG_DONTWAIT) {
  std::vector<char> control(CMSG_SPACE(descriptors.size_bytes()));
  iovec payload{const_cast<void*>(bytes), size};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
}

}  // namespace bulkhead::test
