// How channel.cpp makes the ends of both transports. Private to this folder.
#pragma once

#include <memory>

#include "ipc/channel.hpp"
#include "ipc/peer_socket.hpp"
#include "ipc/record_channel.hpp"
#include "ipc/region.hpp"

namespace bulkhead::ipc {

std::unique_ptr<Channel> make_shm_channel(Side side, Region region, PeerSocket socket);

// `input` and `output` are AF_UNIX stream sockets. `ring_bytes` sizes the buffers, so that both transports have the
// same limits.
Result<std::unique_ptr<Channel>> make_stdio_channel(Side side, UniqueFd input, UniqueFd output,
                                                    PeerSocket socket, std::uint64_t ring_bytes);

}  // namespace bulkhead::ipc
