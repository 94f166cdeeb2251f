#include "tools/model-maker/write_model.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "tools/model-maker/random_blocks.hpp"

namespace bulkhead::model_maker {
namespace {

constexpr std::uint64_t kAlignment = 32;
constexpr std::uint64_t kChunkBytes = 4 << 20;  // what a thread makes and writes at a time

std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

struct Chunk {
  std::size_t tensor;
  std::uint64_t number;  // within the tensor
  std::uint64_t offset;  // in the file
  std::uint64_t bytes;
};

Status write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset,
                const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_error(ErrorCode::kResourceExhausted, "write " + path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

}  // namespace

Result<std::uint64_t> write_model(const Shape& shape, const Plan& plan, const Metadata& metadata,
                                  const WriteOptions& options) {
  std::string head = "GGUF";
  append_u32(head, 3);
  append_u64(head, plan.tensors.size());
  append_u64(head, metadata.count());
  head += metadata.bytes();
  std::vector<std::uint64_t> offsets;
  std::uint64_t end = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    end = aligned(end);
    offsets.push_back(end);
    append_text(head, tensor.name);
    append_u32(head, static_cast<std::uint32_t>(tensor.ne.size()));
    for (const std::uint64_t n : tensor.ne)
      append_u64(head, n);
    append_u32(head, static_cast<std::uint32_t>(tensor.type));
    append_u64(head, end);
    end += tensor.bytes();
  }
  head.resize(aligned(head.size()), '\0');
  const std::uint64_t data = head.size();
  const std::uint64_t total = data + aligned(end);

  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::uint64_t block = model::traits(plan.tensors[i].type)->block_bytes;
    const std::uint64_t step = kChunkBytes / block * block;
    const std::uint64_t bytes = plan.tensors[i].bytes();
    for (std::uint64_t at = 0, number = 0; at < bytes; at += step, ++number) {
      chunks.push_back({i, number, data + offsets[i] + at, std::min(step, bytes - at)});
    }
  }

  const std::string partial = options.path + ".partial";
  UniqueFd fd(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return errno_error(ErrorCode::kInvalidArgument, "create " + partial, errno);
  const auto give_up = [&](Error error) {
    ::unlink(partial.c_str());
    return error;
  };
  // Taking the room first turns a full disk into an error now, not after minutes.
  if (const int failure = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(total));
      failure == ENOSPC) {
    return give_up(errno_error(
        ErrorCode::kResourceExhausted,
        "make room for " + std::to_string(total >> 20) + " MiB in " + partial, failure));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(total)) != 0) {
    return give_up(errno_error(ErrorCode::kResourceExhausted, "size " + partial, errno));
  }
  if (const Status status = write_at(fd.get(), std::as_bytes(std::span(head)), 0, partial);
      !status.ok()) {
    return give_up(status.error());
  }

  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // guards the two below and progress
  std::uint64_t done = 0;
  std::optional<Error> failed;
  const auto work = [&] {
    std::vector<std::byte> buffer(kChunkBytes);
    for (;;) {
      const std::size_t index = next.fetch_add(1);
      if (index >= chunks.size()) return;
      const Chunk& chunk = chunks[index];
      const PlannedTensor& tensor = plan.tensors[chunk.tensor];
      const std::span<std::byte> bytes(buffer.data(), chunk.bytes);
      Random random(options.seed, chunk.tensor, chunk.number);
      switch (tensor.fill) {
        case Fill::kWeights:
          random_weights(tensor.type, tensor.deviation, random, bytes);
          break;
        case Fill::kNorm:
          random_norm(random, bytes);
          break;
        case Fill::kRates:
          random_rates(random, bytes);
          break;
        case Fill::kRopeFactors:
          rope_factors(shape.rope_base, bytes);
          break;
      }
      const Status status = write_at(fd.get(), bytes, chunk.offset, partial);
      const std::lock_guard lock(mutex);
      if (!status.ok() && !failed) failed = status.error();
      if (failed) return;
      done += chunk.bytes;
      if (options.progress) options.progress(done, plan.bytes);
    }
  };
  unsigned count =
      options.threads != 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
  count =
      static_cast<unsigned>(std::min<std::size_t>(count, std::max<std::size_t>(1, chunks.size())));
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < count; ++i)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads)
    thread.join();
  if (failed) return give_up(*failed);
  fd.reset();
  if (::rename(partial.c_str(), options.path.c_str()) != 0) {
    return give_up(
        errno_error(ErrorCode::kInternal, "rename " + partial + " to " + options.path, errno));
  }
  return total;
}

}  // namespace bulkhead::model_maker
