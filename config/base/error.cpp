#include "config/base/error.hpp"

#include <cstring>

namespace bulkhead {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kResourceExhausted:
      return "resource exhausted";
    case ErrorCode::kDeadlineExceeded:
      return "deadline exceeded";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kDeviceLost:
      return "device lost";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

Error errno_error(ErrorCode code, const std::string& what, int error_number) {
  char buffer[256];
  return Error(code, what + ": " + strerror_r(error_number, buffer, sizeof buffer));
}

}  // namespace bulkhead
