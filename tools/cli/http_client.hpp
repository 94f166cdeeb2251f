// A small HTTP client for the daemon's API; only its .cpp includes Boost.Beast. It makes one request at a time, each
// over its own connection.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::cli {

struct Url {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string prefix;  // the path before the API's own paths, without a '/' at its end
};
// Parses "http://HOST[:PORT][/PREFIX]" or HOST:PORT. Refuses https, with advice.
Result<Url> parse_url(const std::string& text);
// Returns an address for an error message: as it was written, and the port if it names none.
std::string with_port(const std::string& text, const Url& url);

struct HttpResponse {
  int status = 0;
  std::string content_type;
  std::string body;  // empty if it was streamed
};

class HttpClient {
 public:
  // Checks `stop` while it waits (every 50 ms), and whenever something has come; if it is set, the call ends with
  // kUnavailable "stopped".
  HttpClient(std::string url_text, Url url, std::string api_key,
             const std::atomic<bool>* stop = nullptr)
      : url_text_(std::move(url_text)),
        url_(std::move(url)),
        api_key_(std::move(api_key)),
        stop_(stop) {}

  // kUnavailable: nothing listens there. kDeadlineExceeded: answer_within() bounds the call, and its time is over. Any
  // status that the server sends counts as success here.
  Result<HttpResponse> get(const std::string& path) { return perform("GET", path, "", nullptr); }
  Result<HttpResponse> post(const std::string& path, const std::string& body) {
    return perform("POST", path, body, nullptr);
  }
  // A body of status 200 goes to on_bytes as it arrives; other bodies are returned whole. However long that takes: a
  // model may be slow.
  using OnBytes = std::function<Status(std::string_view)>;
  Result<HttpResponse> post_streaming(const std::string& path, const std::string& body,
                                      const OnBytes& on_bytes) {
    return perform("POST", path, body, on_bytes);
  }

  // Limits the time of each later get() and post(). Without a limit (nullopt), they wait for the server.
  void answer_within(std::optional<std::chrono::milliseconds> time) { longest_ = time; }

  const std::string& url() const { return url_text_; }
  bool stopped() const { return stop_ != nullptr && stop_->load(); }

 private:
  Result<HttpResponse> perform(const char* method, const std::string& path, const std::string& body,
                               const OnBytes& on_bytes);

  std::string url_text_;
  Url url_;
  std::string api_key_;
  const std::atomic<bool>* stop_;
  std::optional<std::chrono::milliseconds> longest_;
};

}  // namespace bulkhead::cli
