#include "orchestrator/supervisor/file_mark.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "config/base/fnv1a.hpp"
#include "config/template_path.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::string_view kShape = "-00000-of-00000.gguf";
constexpr unsigned kMostParts = 1000;

// Returns the file and, if its name says that it is one part of several, the other parts.
std::vector<std::string> parts_of(const std::string& path) {
  if (path.size() <= kShape.size()) return {path};
  const std::string_view end = std::string_view(path).substr(path.size() - kShape.size());
  const bool split = std::ranges::equal(end, kShape, [](char c, char shape) {
    return shape == '0' ? c >= '0' && c <= '9' : c == shape;
  });
  if (!split) return {path};
  const auto count = static_cast<unsigned>(std::stoul(std::string(end.substr(10, 5))));
  if (count == 0 || count > kMostParts) return {path};
  std::vector<std::string> parts;
  for (unsigned i = 1; i <= count; ++i) {
    parts.push_back(fmt::format("{}-{:05}-of-{:05}.gguf",
                                path.substr(0, path.size() - kShape.size()), i, count));
  }
  return parts;
}

}  // namespace

std::string file_mark_of(const std::string& path) {
  if (path.empty() || path == "builtin") return "-";
  std::string marks;
  std::int64_t bytes = 0;
  for (const std::string& part : parts_of(path)) {
    struct stat info {};
    if (::stat(part.c_str(), &info) != 0) return "-";
    bytes += info.st_size;
    marks += fmt::format("{}.{}.{}.{}.{:09}.{}.{:09};", info.st_dev, info.st_ino, info.st_size,
                         info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                         info.st_ctim.tv_nsec);
  }
  return fmt::format("{}@{:016x}", bytes, fnv1a(marks));
}

std::string template_mark_of(const std::string& chat_template) {
  if (chat_template.empty()) return "";
  const bool file = config::is_template_path(chat_template);
  return fmt::format("+{:016x}", fnv1a(file ? file_mark_of(chat_template) : chat_template));
}

bool names_content(std::string_view numerics_id) {
  constexpr std::size_t kDigits = 16;
  std::size_t at = numerics_id.find(kWeightsInId);
  for (const std::string_view name : {kWeightsInId, std::string_view("/file-")}) {
    if (at == numerics_id.npos || !numerics_id.substr(at).starts_with(name)) return false;
    const std::string_view digits = numerics_id.substr(at + name.size(), kDigits);
    if (digits.size() != kDigits || digits.find_first_not_of("0123456789abcdef") != digits.npos)
      return false;
    at += name.size() + kDigits;
  }
  const std::string_view rest = numerics_id.substr(at);
  return rest.starts_with("/kv-") && rest.find('/', 1) == rest.npos;
}

std::string content_mark(const std::string& joined_mark, std::string_view numerics_id) {
  const std::size_t size_end = joined_mark.find('@');
  if (size_end == std::string::npos || !names_content(numerics_id)) return joined_mark;
  const std::size_t chat_template = joined_mark.find('+');
  return joined_mark.substr(0, size_end) + "@content" +
         (chat_template == std::string::npos ? "" : joined_mark.substr(chat_template));
}

std::string joined_mark(const std::string& file_mark, const std::string& template_mark) {
  return file_mark == "-" ? file_mark : file_mark + template_mark;
}

}  // namespace bulkhead::orchestrator
