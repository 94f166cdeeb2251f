// Reads server-sent events as a client: bytes in, the data of complete events out.
// https://html.spec.whatwg.org/multipage/server-sent-events.html
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace bulkhead::cli {

class SseParser {
 public:
  // Called with each event's data (its lines joined by '\n'); other fields and comments are skipped.
  using OnData = std::function<void(std::string_view data)>;

  // Takes the next bytes of the body, cut anywhere. Returns false if an event is larger than kMaxEventBytes; give the
  // stream up then.
  [[nodiscard]] bool push(std::string_view bytes, const OnData& on_data);

  static constexpr std::size_t kMaxEventBytes = 16 << 20;

 private:
  void end_line(const OnData& on_data);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_return_ = false;  // the last byte was '\r': a '\n' now belongs to it
};

}  // namespace bulkhead::cli
