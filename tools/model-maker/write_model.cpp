#include "tools/model-maker/write_model.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
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

// The head of the file, padded to the beginning of the tensors' bytes, and the place of each
// tensor.
struct Head {
  std::string bytes;
  std::vector<std::uint64_t> offsets;  // each tensor's place after the head
  std::uint64_t data_bytes = 0;        // bytes of all tensors, with padding

  std::uint64_t file_bytes() const { return bytes.size() + data_bytes; }
};

Head make_head(const Plan& plan, const Metadata& metadata) {
  Head head;
  head.bytes = "GGUF";
  append_u32(head.bytes, 3);
  append_u64(head.bytes, plan.tensors.size());
  append_u64(head.bytes, metadata.count());
  head.bytes += metadata.bytes();
  std::uint64_t end = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    end = aligned(end);
    head.offsets.push_back(end);
    append_text(head.bytes, tensor.name);
    append_u32(head.bytes, static_cast<std::uint32_t>(tensor.ne.size()));
    for (const std::uint64_t n : tensor.ne)
      append_u64(head.bytes, n);
    append_u32(head.bytes, static_cast<std::uint32_t>(tensor.type));
    append_u64(head.bytes, end);
    end += tensor.bytes();
  }
  head.bytes.resize(aligned(head.bytes.size()), '\0');
  head.data_bytes = aligned(end);
  return head;
}

std::vector<Chunk> chunks_of(const Plan& plan, const Head& head) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::uint64_t block = model::traits(plan.tensors[i].type)->block_bytes;
    const std::uint64_t step = kChunkBytes / block * block;
    const std::uint64_t bytes = plan.tensors[i].bytes();
    for (std::uint64_t at = 0, number = 0; at < bytes; at += step, ++number) {
      chunks.push_back(
          {i, number, head.bytes.size() + head.offsets[i] + at, std::min(step, bytes - at)});
    }
  }
  return chunks;
}

// Creates the file with its head and with room for the tensors.
Result<UniqueFd> create_file(const std::string& path, const Head& head) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return errno_error(ErrorCode::kInvalidArgument, "create " + path, errno);
  const std::uint64_t total = head.file_bytes();
  const auto give_up = [&path](Error error) {
    ::unlink(path.c_str());
    return error;
  };
  // Taking the room first turns a full disk into an error now, not after minutes.
  if (const int failure = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(total));
      failure == ENOSPC) {
    return give_up(errno_error(ErrorCode::kResourceExhausted,
                               "make room for " + std::to_string(total >> 20) + " MiB in " + path,
                               failure));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(total)) != 0)
    return give_up(errno_error(ErrorCode::kResourceExhausted, "size " + path, errno));
  const Status written = write_at(fd.get(), std::as_bytes(std::span(head.bytes)), 0, path);
  if (!written.ok()) return give_up(written.error());
  return fd;
}

void fill(const PlannedTensor& tensor, float rope_base, Random& random,
          std::span<std::byte> bytes) {
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
      rope_factors(rope_base, bytes);
      break;
  }
}

// Makes all chunks and writes them, on as many threads as `options` says.
Status write_chunks(const Shape& shape, const Plan& plan, const std::vector<Chunk>& chunks, int fd,
                    const std::string& path, const WriteOptions& options) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // guards the two below and progress
  std::uint64_t done = 0;
  Status failed;
  const auto work = [&] {
    std::vector<std::byte> buffer(kChunkBytes);
    for (;;) {
      const std::size_t index = next.fetch_add(1);
      if (index >= chunks.size()) return;
      const Chunk& chunk = chunks[index];
      const std::span<std::byte> bytes(buffer.data(), chunk.bytes);
      Random random(options.seed, chunk.tensor, chunk.number);
      fill(plan.tensors[chunk.tensor], shape.rope_base, random, bytes);
      const Status status = write_at(fd, bytes, chunk.offset, path);
      const std::lock_guard lock(mutex);
      if (!status.ok() && failed.ok()) failed = status;
      if (!failed.ok()) return;
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
  return failed;
}

}  // namespace

Result<std::uint64_t> write_model(const Shape& shape, const Plan& plan, const Metadata& metadata,
                                  const WriteOptions& options) {
  // The rename at the end would put the file in the place of a device (/dev/null).
  struct stat status {};
  if (::stat(options.path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return Error(ErrorCode::kInvalidArgument,
                 options.path + ": is " +
                     (S_ISDIR(status.st_mode) ? "a folder" : "no regular file") +
                     "; name a file to write");
  }
  const Head head = make_head(plan, metadata);
  const std::string partial = options.path + ".partial";
  BULKHEAD_TRY(UniqueFd fd, create_file(partial, head));
  const auto give_up = [&partial](Error error) {
    ::unlink(partial.c_str());
    return error;
  };
  const Status written =
      write_chunks(shape, plan, chunks_of(plan, head), fd.get(), partial, options);
  if (!written.ok()) return give_up(written.error());
  fd.reset();
  if (::rename(partial.c_str(), options.path.c_str()) != 0) {
    return give_up(
        errno_error(ErrorCode::kInternal, "rename " + partial + " to " + options.path, errno));
  }
  return head.file_bytes();
}

}  // namespace bulkhead::model_maker
