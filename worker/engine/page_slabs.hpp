// The slabs by which the pages of one kind grow and shrink (ExecutorLimits::slab_pages): which have memory.
//
//     absent    no memory
//     present   its pages can be handed out
//     leaving   its pages are no longer handed out; once nobody uses any of them, it is absent
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

enum class PageKind : std::uint8_t { kFull, kWindow };
inline constexpr PageKind kPageKinds[] = {PageKind::kFull, PageKind::kWindow};

class PageSlabs {
 public:
  PageSlabs(const ExecutorLimits& limits, PageKind kind);

  std::uint32_t always() const { return always_; }  // pages that are always there
  std::uint32_t slab_pages() const { return slab_pages_; }
  bool is_present(PageIndex page) const { return state_of(page) == State::kPresent; }
  bool is_leaving(PageIndex page) const { return state_of(page) == State::kLeaving; }
  std::uint32_t present() const;
  std::uint32_t present_pages() const { return always_ + present() * slab_pages_; }

  // Slabs have the numbers [first_number(), first_number() + count()).
  std::uint32_t first_number() const { return first_number_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(states_.size()); }
  bool owns(std::uint32_t slab) const {
    return slab >= first_number_ && slab - first_number_ < count();
  }
  std::optional<std::uint32_t> absent() const;  // the lowest one
  std::optional<std::uint32_t> leaving() const { return leaving_; }
  // The first page of a slab; slab_pages() pages follow each other.
  PageIndex begin_of(std::uint32_t slab) const {
    return first_page_ + always_ + (slab - first_number_) * slab_pages_;
  }
  // The slab's place among the slabs of its kind.
  std::uint32_t place_of(std::uint32_t slab) const { return slab - first_number_; }

  void add(std::uint32_t slab);
  // Makes the least used present slab leave. used(slab) returns how many of its pages are in use, or nothing if
  // it has to stay. Returns the slab; none if all have to stay or one leaves already.
  template <typename Used>
  std::optional<std::uint32_t> let_leave(const Used& used) {
    if (leaving_) return std::nullopt;
    std::uint32_t least = 0;
    for (std::uint32_t slab = first_number_; slab < first_number_ + count(); ++slab) {
      if (at(slab) != State::kPresent) continue;
      const std::optional<std::uint32_t> pages = used(slab);
      if (!pages || (leaving_ && *pages > least)) continue;
      leaving_ = slab;
      least = *pages;
    }
    if (leaving_) at(*leaving_) = State::kLeaving;
    return leaving_;
  }
  // If no page of the leaving slab is in use, makes this slab absent and returns it. If the slab has to stay, calls
  // stay(slab), which must call add(). `used` is the same as for let_leave().
  template <typename Used, typename Stay>
  std::optional<std::uint32_t> that_left(const Used& used, const Stay& stay) {
    if (!leaving_) return std::nullopt;
    const std::uint32_t slab = *leaving_;
    const std::optional<std::uint32_t> pages = used(slab);
    if (!pages) stay(slab);
    if (pages != 0U) return std::nullopt;
    leaving_.reset();
    at(slab) = State::kAbsent;
    return slab;
  }

 private:
  enum class State : std::uint8_t { kAbsent, kPresent, kLeaving };
  State& at(std::uint32_t slab) { return states_[slab - first_number_]; }
  State state_of(PageIndex page) const {
    const PageIndex behind = first_page_ + always_;
    return page < behind ? State::kPresent : states_[(page - behind) / slab_pages_];
  }

  PageIndex first_page_;
  std::uint32_t always_, slab_pages_, first_number_;
  std::vector<State> states_;
  std::optional<std::uint32_t> leaving_;
};

}  // namespace bulkhead::engine
