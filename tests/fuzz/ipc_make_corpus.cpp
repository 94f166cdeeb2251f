// Writes the IPC fuzzers' corpus: ipc-make-corpus tests/fuzz/corpus
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "ipc/ring.hpp"
#include "tests/fuzz/hostile_peer.hpp"
#include "tests/unit/ipc/samples.hpp"

using namespace bulkhead;

namespace {

void write(const std::string& path, const void* bytes, std::size_t size) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
}

std::string step(unsigned op, std::uint64_t place, std::uint64_t value) {
  std::string bytes(16, '\0');
  bytes[0] = static_cast<char>(op);
  std::memcpy(&bytes[1], &place, 7);
  std::memcpy(&bytes[8], &value, 8);
  return bytes;
}
std::uint64_t header(std::uint32_t length, ipc::FrameKind kind) {
  return std::uint64_t{static_cast<std::uint32_t>(kind)} << 32 | length;
}

template <typename Message>
bool write_messages(const std::string& path, const std::vector<Message>& samples) {
  int number = 0;
  for (const Message& message : samples) {
    std::vector<std::uint64_t> words(ipc::encoded_bound(message) / 8);
    const auto size = ipc::encode(message, std::as_writable_bytes(std::span(words)));
    if (!size.ok()) return false;
    write(path + std::to_string(number++), words.data(), *size);
  }
  return true;
}

// Frames sent, taken and released; a wrap with padding; sleep and room.
void write_ring_steps(const std::string& folder) {
  using ipc::FrameKind;
  const std::string one =
      step(6, 0, header(56, FrameKind::kWhole)) + step(1, 0, 64) + step(8, 0, 0);
  std::string wrap;
  std::uint64_t at = 0;
  for (const std::uint32_t length : {2032U, 1528U}) {
    wrap += step(6, at, header(length, FrameKind::kWhole)) + step(1, 0, length + 8) + step(8, 0, 0);
    at += length + 8;
  }
  wrap += step(6, at, header(static_cast<std::uint32_t>(4096 - at - 8), FrameKind::kPadding)) +
          step(6, 0, header(100, FrameKind::kMore)) + step(1, 0, 4096 - at + 112) + step(8, 0, 0);
  const std::string send = step(9, 0, 100) + step(9, 0, 2000) + step(9, 0, 1900) + step(4, 0, 112) +
                           step(11, 0, 50) + step(7, 0, 1) + step(9, 0, 20);
  const std::string sleep = step(10, 0, 0) + one + step(8, 1, 0) + step(10, 0, 0);
  int number = 0;
  for (const std::string& input : {one, wrap, send, sleep, one + wrap + send + sleep})
    write(folder + "/ipc_ring/steps_" + std::to_string(number++), input.data(), input.size());
}

using fuzz::Action;

std::string act(Action action, unsigned choice, unsigned count, std::uint64_t value) {
  std::string bytes(fuzz::kStepBytes, '\0');
  bytes[0] = static_cast<char>(action);
  bytes[1] = static_cast<char>(choice);
  const auto short_count = static_cast<std::uint16_t>(count);
  std::memcpy(&bytes[2], &short_count, 2);
  std::memcpy(&bytes[4], &value, 8);
  return bytes;
}

// Writes the script for each of the settings of a peer.
void play(const std::string& folder, const std::string& name, const std::string& script,
          std::initializer_list<unsigned> settings = {0x14U, 0x1DU, 0x26U, 0x1EU}) {
  for (const unsigned flags : settings) {
    const std::string input = static_cast<char>(flags) + script;
    write(folder + "/ipc_hostile_peer/" + name + "_" + std::to_string(flags), input.data(),
          input.size());
  }
}

// A hostile peer: each action alone between messages that are as they should be, here and in a
// second process, and some that belong together.
void write_peers(const std::string& folder) {
  const std::string good = act(Action::kSample, 0, 0, 0) + act(Action::kSample, 4, 0, 0);
  for (unsigned action = 0; action < static_cast<unsigned>(Action::kCount); ++action) {
    const auto one_action = static_cast<Action>(action);
    const bool stream = one_action >= Action::kStreamBytes && one_action <= Action::kStreamRead;
    const std::string script = good + act(one_action, 8, 40, 0x1008) + good +
                               act(one_action, 3, 2000, 0xFFFFFFFF00000010) + good;
    const std::string name = (action < 10 ? "action_0" : "action_") + std::to_string(action);
    if (stream) {
      play(folder, name, script, {0x16U, 0x2EU});
    } else {
      play(folder, name, script);
    }
  }
  std::string all;
  for (unsigned sample = 0; sample < 16; ++sample)
    all += act(Action::kSample, sample, 0, 0) + act(Action::kSampleInPieces, sample, 0, 0x10300);
  play(folder, "all_messages", all);
  play(folder, "changed_while_read",
       act(Action::kRewrite, 5, 4000, 77) + act(Action::kRewrite, 2, 4000, 78) +
           act(Action::kFlood, 5, 400, 0) + act(Action::kScribble, 0, 4000, 5));
  play(folder, "endless_record", act(Action::kPieces, 100, 60000, 0));
  play(folder, "reads_nothing_and_sleeps",
       act(Action::kSleepWords, 0, 0, 9) + act(Action::kFlood, 13, 3000, 0) +
           act(Action::kSleepWords, 0, 0, 11) + act(Action::kPretendRead, 0, 0, 0));
  play(folder, "descriptors_and_death",
       act(Action::kDescriptors, 4, 60, 1) + act(Action::kOwnEnds, 0, 0, 2) +
           act(Action::kEmptyPacket, 0, 0, 0) + act(Action::kLingering, 3, 1, 0) +
           act(Action::kDeath, 0, 0, 0));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ipc-make-corpus DIRECTORY\n");
    return 2;
  }
  const std::string folder = argv[1];
  // What only the daemon may say, a hostile worker says, too.
  if (!write_messages(folder + "/ipc_messages/from_worker_", ipc::test::samples_from_worker()) ||
      !write_messages(folder + "/ipc_messages/to_worker_", ipc::test::samples_to_worker()))
    return 1;
  write_ring_steps(folder);
  write_peers(folder);
  return 0;
}
