// + - * / // % ** of two numbers.
#pragma once

#include "worker/model/template/run.hpp"
#include "worker/model/template/syntax.hpp"

namespace bulkhead::jinja {

// Both must be numbers. Integers of any size stay integers; fails where Python does.
Value arithmetic(Run& run, Operation operation, const Value& a, const Value& b);

}  // namespace bulkhead::jinja
