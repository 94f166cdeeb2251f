// A worker that follows a script against the daemon. It has everything that a worker holds of a channel, and can do
// everything with it, one step after another. The script is a fuzzer's input, so every value of every byte has a
// meaning.
//
//   a script is steps of 12 bytes:
//     +0 action   +1 choice   +2 uint16 count   +4 uint64 value
//
// A HostilePeer never blocks and does a bounded amount of work for any script. It runs in a separate process beside
// the daemon's side, or in steps between the daemon's calls, where it does exactly the same every time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "ipc/region.hpp"

namespace bulkhead::fuzz {

enum class Action : std::uint8_t {
  // the region
  kStoreWord,       // a control word: overwritten, added to, set near its value or to an extreme
  kWriteData,       // eight bytes into the ring to the daemon
  kFrame,           // a frame whose header lies about length and kind
  kSample,          // a good message, one byte changed
  kSampleInPieces,  // the same in pieces; the last piece may be left out
  kFlood,           // good messages, as fast as there is room
  kScribble,        // bytes all over the region
  kToggleWord,      // a control word that alternates between two values
  kPretendRead,     // pretends to have read everything that the daemon sent
  kSleepWords,      // announces sleep any number of times
  kRewrite,         // a message that changes while it is read
  kScribbleDown,    // bytes into the ring from the daemon, and into its head
  kPieces,          // pieces that never end
  // the socket
  kDoorbells,      // many
  kPacket,         // of any size, with and without descriptors
  kDescriptors,    // valid ones, but many
  kOwnEnds,        // its own ends of the channel as descriptors
  kLingering,      // sockets that block when they are closed
  kCredentials,    // a control message of another kind
  kSocketOptions,  // buffers, credentials
  kEmptyPacket,    // looks like end of file
  kShutdown,       // shuts down half of the socket, or both halves
  kCloseSocket,
  // the stream
  kStreamBytes,        // arbitrary bytes
  kStreamFloods,       // one byte, many times
  kStreamDescriptors,  // descriptors where nobody expects them
  kStreamUrgent,       // out-of-band bytes
  kStreamShutdown,     // shuts down one half
  kStreamClose,
  kStreamRead,  // reads what the daemon sent, or part of it
  // the memory itself
  kHole,    // pages given back to the kernel
  kResize,  // what the seals forbid
  // the rest
  kPause,
  kDeath,  // closes and unmaps everything
  kCount,
};

inline constexpr std::size_t kStepBytes = 12;

struct Held {
  UniqueFd socket, region, input, output;  // region invalid: stdio
};

class HostilePeer {
 public:
  // `patience` is how often it tries again when there is no room; 0 if nobody makes room.
  HostilePeer(Held held, std::span<const std::uint8_t> script, int patience);
  ~HostilePeer();
  // Does the next step; returns false if there is none left.
  bool step();

  // Encodes messages once, for all peers of a process.
  static void prepare();
  // Returns how many descriptors peers of this process have left open (the other ends of lingering sockets).
  static std::size_t left_open();

 private:
  using Sample = std::vector<std::uint64_t>;
  struct Step {
    Action action;
    std::uint8_t choice;
    std::uint16_t count;
    std::uint64_t value;
  };

  static constexpr std::size_t kMostDescriptors = 253;  // the most that one packet can carry

  void act(const Step& step);
  // One function for each kind of step; act() has the table.
  void do_store_word(const Step& step);
  void do_write_data(const Step& step);
  void do_frame(const Step& step);
  void do_scribble(const Step& step);
  void do_toggle_word(const Step& step);
  void do_pretend_read(const Step& step);
  void do_sleep_words(const Step& step);
  void do_pieces(const Step& step);
  void do_doorbells(const Step& step);
  void do_packet(const Step& step);
  void do_descriptors(const Step& step);
  void do_own_ends(const Step& step);
  void do_lingering(const Step& step);
  void do_credentials(const Step& step);
  void do_socket_options(const Step& step);
  void do_empty_packet(const Step& step);
  void do_shutdown(const Step& step);
  void do_close_socket(const Step& step);
  void do_stream_bytes(const Step& step);
  void do_stream_floods(const Step& step);
  void do_stream_descriptors(const Step& step);
  void do_stream_urgent(const Step& step);
  void do_stream_shutdown(const Step& step);
  void do_stream_close(const Step& step);
  void do_stream_read(const Step& step);
  void do_hole(const Step& step);
  void do_resize(const Step& step);
  void do_pause(const Step& step);
  void do_death(const Step& step);
  std::uint64_t next_random();
  bool spend(std::size_t work);
  bool send_frame(const void* payload, std::size_t bytes, std::uint32_t length, std::uint32_t kind);
  void stream(const void* bytes, std::size_t size, int flags = 0);
  bool packet(UniqueFd& socket, const void* bytes, std::size_t size, std::span<const int> fds,
              int type = 0x01);
  void send_sample(const Step& step);
  void store_word(const Step& step);
  void lingering(const Step& step, UniqueFd& socket);
  void die();
  std::atomic<std::uint64_t>& word(unsigned which);
  bool shm() const { return base_ != nullptr; }
  ipc::RegionHeader& header() { return *reinterpret_cast<ipc::RegionHeader*>(base_); }
  std::byte* up() { return base_ + ipc::kRegionDataOffset + ring_bytes_; }
  std::byte* down() { return base_ + ipc::kRegionDataOffset; }

  Held held_;
  std::span<const std::uint8_t> script_;
  int patience_;
  std::size_t at_ = 0;
  std::size_t work_ = 0;
  std::byte* base_ = nullptr;
  std::uint64_t ring_bytes_ = 0;
  std::uint64_t random_ = 1;
};

}  // namespace bulkhead::fuzz
