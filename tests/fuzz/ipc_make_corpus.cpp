// Writes the IPC fuzzers' corpus: ipc-make-corpus tests/fuzz/corpus
#include <cstdio>
#include <fstream>
#include <string>

#include "ipc/ring.hpp"
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ipc-make-corpus DIRECTORY\n");
    return 2;
  }
  const std::string folder = argv[1];
  int number = 0;
  for (const auto& message : ipc::test::samples_from_worker()) {
    std::vector<std::uint64_t> words(ipc::encoded_bound(message) / 8);
    const auto size = ipc::encode(message, std::as_writable_bytes(std::span(words)));
    if (!size.ok()) return 1;
    write(folder + "/ipc_messages/from_worker_" + std::to_string(number++), words.data(), *size);
  }
  // Frames sent, taken and released; a wrap with padding; sleep and room.
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
  number = 0;
  for (const std::string& input : {one, wrap, send, sleep, one + wrap + send + sleep}) {
    write(folder + "/ipc_ring/steps_" + std::to_string(number++), input.data(), input.size());
  }
  return 0;
}
