#include "orchestrator/supervisor/file_report.hpp"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "ipc/messages.hpp"
#include "orchestrator/supervisor/program_output.hpp"
#include "orchestrator/supervisor/worker_limits.hpp"
#include "orchestrator/supervisor/worker_program.hpp"

namespace bulkhead::orchestrator {

namespace {

// A report has a template, of 256 KiB at most, and short texts.
constexpr ProgramLimits kLimits{std::chrono::seconds(30), 1 << 20};

}  // namespace

Result<ipc::Ready> report_of_file(const std::string& worker_program,
                                  std::vector<std::string> arguments, pid_t* left_behind) {
  BULKHEAD_TRY(const std::string program, pinned_program(worker_program));
  arguments.insert(arguments.begin(), {worker_program, "--describe"});
  BULKHEAD_TRY(const std::string output,
               output_of(program, std::move(arguments), kLimits, left_behind));
  std::vector<std::uint64_t> record(output.size() / sizeof(std::uint64_t) + 1);  // for alignment
  std::memcpy(record.data(), output.data(), output.size());
  BULKHEAD_TRY(ipc::FromWorker message,
               ipc::decode_from_worker(std::as_bytes(std::span(record)).first(output.size())));
  BULKHEAD_RETURN_IF_ERROR(check_limits(message));
  tidy(message);
  if (auto* const ready = std::get_if<ipc::Ready>(&message)) return std::move(*ready);
  if (const auto* const fatal = std::get_if<ipc::Fatal>(&message))
    return Error(ErrorCode::kInvalidArgument, fatal->message);
  return Error(ErrorCode::kCorrupt, "it sent another message than a report");
}

}  // namespace bulkhead::orchestrator
