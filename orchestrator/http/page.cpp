#include "orchestrator/http/page.hpp"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/errors.hpp"

namespace bulkhead::orchestrator {

namespace {

// The page loads nothing from other hosts, sends nothing to them, runs only its own scripts, makes no HTML from text,
// and can't be shown in a frame.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

}  // namespace

HttpResponse page_response(std::string_view name) {
  const auto files = page_files();
  const auto file = std::ranges::find(files, name, &PageFile::name);
  if (file == files.end())
    return refusal(kUnknownUrl, fmt::format("The web page has no file '{}'.", name));
  HttpResponse response;
  response.content_type = file->type;
  response.body = file->text;
  response.headers = {{"ETag", std::string(file->etag)},
                      // The browser must ask each time, because another version of the daemon has another page.
                      {"Cache-Control", "no-cache"},
                      {"Content-Security-Policy", kContentSecurityPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}};
  return response;
}

}  // namespace bulkhead::orchestrator
