// Integers that can't be mistaken for one another: a RequestId is no SequenceId.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace bulkhead {

template <typename Tag, typename Representation = std::uint64_t>
struct StrongId {
  Representation value{};
  auto operator<=>(const StrongId&) const = default;
};

// A request as the daemon numbers it; unique in the daemon's life, 0 is none.
using RequestId = StrongId<struct RequestIdTag>;

}  // namespace bulkhead

template <typename Tag, typename Representation>
struct std::hash<bulkhead::StrongId<Tag, Representation>> {
  std::size_t operator()(bulkhead::StrongId<Tag, Representation> id) const noexcept {
    return std::hash<Representation>{}(id.value);
  }
};
