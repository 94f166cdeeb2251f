// A small HTTP client for the daemon's API; Boost.Beast stays behind the .cpp. One request at a
// time, a connection each.
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
  std::string prefix;  // path before the API's own, without a '/' at its end
};
// "http://HOST[:PORT][/PREFIX]", or HOST:PORT. https is refused with advice.
Result<Url> parse_url(const std::string& text);

struct HttpResponse {
  int status = 0;
  std::string content_type;
  std::string body;  // empty where it was streamed
};

class HttpClient {
 public:
  // `stop` is looked at while waiting (every 50 ms), and whenever something came; when it is set, the call ends with
  // kUnavailable "stopped".
  HttpClient(std::string url_text, Url url, std::string api_key,
             const std::atomic<bool>* stop = nullptr)
      : url_text_(std::move(url_text)),
        url_(std::move(url)),
        api_key_(std::move(api_key)),
        stop_(stop) {}

  // kUnavailable: nothing listens there. Any status that the server sends is a success here.
  Result<HttpResponse> get(const std::string& path) { return perform("GET", path, "", nullptr); }
  Result<HttpResponse> post(const std::string& path, const std::string& body) {
    return perform("POST", path, body, nullptr);
  }
  // A body of status 200 goes to on_bytes as it arrives; other bodies come back whole.
  using OnBytes = std::function<Status(std::string_view)>;
  Result<HttpResponse> post_streaming(const std::string& path, const std::string& body,
                                      const OnBytes& on_bytes) {
    return perform("POST", path, body, on_bytes);
  }

  const std::string& url() const { return url_text_; }
  bool stopped() const { return stop_ != nullptr && stop_->load(); }

 private:
  Result<HttpResponse> perform(const char* method, const std::string& path, const std::string& body,
                               const OnBytes& on_bytes);

  std::string url_text_;
  Url url_;
  std::string api_key_;
  const std::atomic<bool>* stop_;
};

}  // namespace bulkhead::cli
