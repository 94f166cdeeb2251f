#include "gpu/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "config/base/log.hpp"

namespace bulkhead::gpu {
namespace {

constexpr std::size_t kHeldBack = 512;
constexpr std::size_t kEnoughToSettle =
    32;  // enough events for flush(), which cannot wait for more
constexpr int kDeviceProcess = 1, kHostProcess = 2;
constexpr const char* kHeading =
    R"([{"ph":"M","pid":1,"name":"process_name","args":{"name":"device"}},
{"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"upload"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"download"}},
{"ph":"M","pid":2,"name":"process_name","args":{"name":"host"}})";

}  // namespace

Result<std::unique_ptr<Trace>> Trace::create(const std::string& path, std::uint64_t max_bytes) {
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("trace file {}: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<Trace>(new Trace(file, max_bytes));
}

Trace::Trace(std::FILE* file, std::uint64_t max_bytes) : file_(file), left_(max_bytes) {
  std::fputs(kHeading, file_);
  held_back_.reserve(kHeldBack);
}

Trace::~Trace() {
  settle();
  std::fputs("\n]\n", file_);
  std::fclose(file_);
}

void Trace::device_ran(DeviceLane lane, const char* name, std::uint64_t begin_ns,
                       std::uint64_t end_ns, std::uint64_t id, std::uint64_t bytes) {
  if (full_) return;
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  const std::int64_t distance = now - static_cast<std::int64_t>(end_ns);
  if (!settled_ && (!seen_device_ || distance < device_to_host_ns_)) device_to_host_ns_ = distance;
  seen_device_ = true;
  add({name, kDeviceProcess, static_cast<int>(lane), static_cast<std::int64_t>(begin_ns),
       static_cast<std::int64_t>(std::max(end_ns, begin_ns) - begin_ns), id, bytes});
}

void Trace::host_ran(const char* name, Clock::time_point begin, Clock::time_point end,
                     std::uint64_t id) {
  if (full_) return;
  const auto ns = [](Clock::duration duration) {
    return static_cast<std::int64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
  };
  add({name, kHostProcess, 0, ns(begin - start_), ns(end - begin), id, 0});
}

void Trace::flush() {
  if (!settled_ && held_back_.size() >= kEnoughToSettle) settle();
  std::fflush(file_);
}

void Trace::add(const Event& event) {
  if (settled_) return write(event);
  held_back_.push_back(event);
  if (held_back_.size() == kHeldBack) settle();
}

void Trace::settle() {
  settled_ = true;
  for (const Event& event : held_back_)
    write(event);
  held_back_.clear();
  held_back_.shrink_to_fit();
}

void Trace::write(const Event& event) {
  if (full_) return;
  const std::int64_t begin =
      event.begin_ns + (event.process == kDeviceProcess ? device_to_host_ns_ : 0);
  char line[256];
  const auto end = fmt::format_to_n(
      line, sizeof line,
      ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f},"
      "\"args\":{{\"id\":{},\"bytes\":{}}}}}",
      event.process, event.lane, event.name, static_cast<double>(begin) / 1e3,
      static_cast<double>(event.duration_ns) / 1e3, event.id, event.bytes);
  const std::size_t bytes = std::min(end.size, sizeof line);
  if (end.size > sizeof line) return;  // no name of ours is that long
  if (bytes > left_) {
    full_ = true;
    std::fflush(file_);
    spdlog::warn("the trace file is full: nothing more is written to it");
    return;
  }
  left_ -= bytes;
  std::fwrite(line, 1, bytes, file_);
}

}  // namespace bulkhead::gpu
