#include "worker/model/template/text.hpp"

#include <algorithm>

#include "worker/model/template/run.hpp"
#include "worker/model/template/template_error.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::jinja {
namespace {

bool is_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

Text::Text(std::string_view bytes, Origin origin) {
  TextBuilder builder;
  builder.append(bytes, origin);
  *this = builder.take();
}

Text::Text(const Text& other) : buffer_(other.buffer_), begin_(other.begin_), size_(other.size_) {
  if (buffer_ != nullptr) buffer_->references.fetch_add(1, std::memory_order_relaxed);
}

Text::Text(Text&& other) noexcept
    : buffer_(std::exchange(other.buffer_, nullptr)),
      begin_(std::exchange(other.begin_, 0)),
      size_(std::exchange(other.size_, 0)) {}

Text& Text::operator=(Text other) noexcept {
  std::swap(buffer_, other.buffer_);
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  return *this;
}

Text::~Text() {
  release(buffer_);
}

void Text::release(TextBuffer* buffer) {
  if (buffer == nullptr) return;
  if (buffer->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  refund_memory(sizeof(TextBuffer));
  delete buffer;
}

Text Text::as_markup() const {
  if (markup()) return *this;
  TextBuilder out;
  out.reserve(size_);
  out.append(*this);
  Text copy = out.take();
  copy.buffer_->markup = true;
  return copy;
}

Text Text::sub(std::size_t begin, std::size_t count) const {
  Text part(*this);
  begin = std::min<std::size_t>(begin, size_);
  part.begin_ += static_cast<std::uint32_t>(begin);
  part.size_ = static_cast<std::uint32_t>(std::min<std::size_t>(count, size_ - begin));
  return part;
}

void Text::count_step() {
  Run::tick_of_thread(1);
}

std::size_t Text::first_range() const {
  if (buffer_ == nullptr) return 0;
  const auto& user = buffer_->user;
  const auto at = std::upper_bound(
      user.begin(), user.end(), begin_,
      [](std::uint32_t begin, const UserRange& range) { return begin < range.end; });
  return static_cast<std::size_t>(at - user.begin());
}

bool Text::user_at(std::size_t byte) const {
  const Text rest = sub(byte, 1);
  return rest.has_user_bytes();
}

bool Text::has_user_bytes() const {
  if (buffer_ == nullptr || size_ == 0) return false;
  const std::size_t first = first_range();
  return first < buffer_->user.size() && buffer_->user[first].begin < begin_ + size_;
}

TextBuffer& TextBuilder::buffer() {
  if (buffer_ == nullptr) {
    charge_memory(sizeof(TextBuffer));
    buffer_ = new TextBuffer;
  }
  return *buffer_;
}

void TextBuilder::reserve(std::size_t bytes) {
  buffer().bytes.reserve(bytes);
}

void TextBuilder::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  Run::tick_of_thread(copy_steps(bytes.size()));
  TextBuffer& to = buffer();
  constexpr std::size_t kMax = 0xffffffff;
  if (bytes.size() > kMax - to.bytes.size())
    throw TemplateError(TemplateError::Kind::kLimit, "makes a text of over 4 GiB");
  const auto begin = static_cast<std::uint32_t>(to.bytes.size());
  to.bytes.append(bytes);
  to.ascii = to.ascii && is_ascii(bytes);
  if (origin == Origin::kTemplate) return;
  const auto end = static_cast<std::uint32_t>(to.bytes.size());
  if (!to.user.empty() && to.user.back().end == begin)
    to.user.back().end = end;
  else
    to.user.push_back({begin, end});
}

void TextBuilder::append(const Text& text) {
  text.for_runs([this](std::string_view bytes, Origin origin) { append(bytes, origin); });
}

void TextBuilder::append(char32_t code, Origin origin) {
  std::string bytes;
  model::append_utf8(bytes, code);
  append(bytes, origin);
}

Text TextBuilder::take() {
  Text text;
  text.buffer_ = std::exchange(buffer_, nullptr);
  if (text.buffer_ != nullptr) text.size_ = static_cast<std::uint32_t>(text.buffer_->bytes.size());
  return text;
}

}  // namespace bulkhead::jinja
