#include "orchestrator/http/trace_context.hpp"

#include <string>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";
const std::string kField = "00-" + kTrace + "-" + kParent + "-01";

TEST(TraceContext, TakesOverTraceAndFlagsAndMakesASpan) {
  const TraceContext trace = trace_of(kField);
  ASSERT_TRUE(trace.known());
  EXPECT_EQ(trace.trace_id(), kTrace);
  EXPECT_EQ(trace.parent_id(), kParent);
  EXPECT_EQ(trace.span_id.size(), 16U);
  EXPECT_NE(trace.span_id, kParent);
  EXPECT_NE(trace.span_id, trace_of(kField).span_id) << "each request is a span of its own";
  EXPECT_EQ(trace.field(), "00-" + kTrace + "-" + trace.span_id + "-01");
  // A later version may have more fields; this parser reads the first ones.
  EXPECT_EQ(trace_of("cc" + kField.substr(2) + "-what").trace_id(), kTrace);
}

TEST(TraceContext, IgnoresAFieldThatBreaksTheRules) {
  const std::string zeros(32, '0');
  for (const std::string& field :
       {std::string(), std::string("00"), kField + "-more", kField.substr(0, 54),
        "ff" + kField.substr(2), "00-" + zeros + "-" + kParent + "-01",
        "00-" + kTrace + "-" + zeros.substr(16) + "-01", "00_" + kField.substr(3),
        "00-" + std::string(32, 'A') + "-" + kParent + "-01", "00-" + kTrace + "-" + kParent + "-0g"})
    EXPECT_FALSE(trace_of(field).known()) << field;
}

TEST(TraceContext, ComesBackFromARecord) {
  const TraceContext trace = trace_of(kField);
  const TraceContext read = TraceContext::from_record(trace.record());
  EXPECT_EQ(read.field(), trace.field());
  EXPECT_EQ(read.parent_id(), kParent);
  EXPECT_FALSE(TraceContext::from_record("").known());
}

}  // namespace
}  // namespace bulkhead::orchestrator
