// The sets of cases that tests, tools and benchmarks run.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "cases/case.h"

namespace tilewise::cases {

// A small set of small cases: for sanitizer builds.
std::vector<Case> smoke_cases(Op op);
// At most 120 cases: all records and pairs of records, all options, all head counts; pairwise as far as they
// go.
std::vector<Case> ci_cases(Op op);
// The whole grid of head counts, list lengths and query tokens, everything else rotating; and the ci cases.
std::vector<Case> full_cases(Op op);
enum class TestSet { kSmoke, kCi, kFull };
// The environment's TILEWISE_TEST_SET: smoke, ci (also when there is none) or full. Throws on another value.
TestSet test_set();
// The cases of that set.
std::vector<Case> test_cases(Op op);

// Model-like shapes, few enough to be compared with the oracle in a minute or two.
std::vector<Case> demo_cases();
// What benchmarks time.
std::vector<Case> bench_cases();

// The case of that name in any of the sets above.
std::optional<Case> find_case(std::string_view name);

}  // namespace tilewise::cases
