// Combines several lambdas into one function object for std::visit: Overloaded{[](A) {...}, [](B) {...}}. The
// compiler reports a type that none of them takes.
#pragma once

namespace bulkhead {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace bulkhead
