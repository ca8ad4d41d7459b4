// Overlap of strided views.
#include "core/footprint.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace tilewise {
namespace {

constexpr int kMaxVisits = 1000;

// Sum of the extents of steps [from, num_steps) and a run.
int64_t extent_from(const Footprint& f, int from) {
  int64_t bytes = f.run;
  for (int i = from; i < f.num_steps; ++i) {
    const auto& step = f.steps[static_cast<size_t>(i)];
    bytes += step.bytes * (step.times - 1);
  }
  return bytes;
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Whether a, moved by `offset` bytes relative to b and entered at step i, meets b, entered at step j.
bool meets(const Footprint& a, int i, const Footprint& b, int j, int64_t offset, int* visits) {
  if (--*visits < 0) return false;
  const int64_t extent_a = extent_from(a, i);
  const int64_t extent_b = extent_from(b, j);
  if (offset >= extent_b || -offset >= extent_a) return false;
  const int64_t step_a = i < a.num_steps ? a.steps[static_cast<size_t>(i)].bytes : 0;
  const int64_t step_b = j < b.num_steps ? b.steps[static_cast<size_t>(j)].bytes : 0;
  if (step_a == 0 && step_b == 0) return true;
  if (step_a < step_b) return meets(b, j, a, i, -offset, visits);

  // Entering the larger step. Where both steps are equal only the difference of the two counters matters.
  const bool both = step_a == step_b;
  const int64_t inner_a = extent_from(a, i + 1);
  const int64_t inner_b = both ? extent_from(b, j + 1) : extent_b;
  const int64_t lowest = both ? 1 - b.steps[static_cast<size_t>(j)].times : 0;
  const int64_t highest = a.steps[static_cast<size_t>(i)].times - 1;
  const int64_t first = std::max(lowest, floor_div(-offset - inner_a, step_a) + 1);
  const int64_t last = std::min(highest, floor_div(inner_b - offset - 1, step_a));
  for (int64_t k = first; k <= last && *visits > 0; ++k) {
    if (meets(a, i + 1, b, both ? j + 1 : j, offset + k * step_a, visits)) return true;
  }
  return false;
}

}  // namespace

int64_t Footprint::extent() const { return extent_from(*this, 0); }

Footprint footprint(const TensorView& view) {
  Footprint f;
  f.first = static_cast<int64_t>(reinterpret_cast<intptr_t>(view.data()));
  if (!view.present() || view.numel() == 0) return f;
  f.run = size_of(view.dtype());
  for (int i = 0; i < view.rank(); ++i) {
    if (view.size(i) == 1) continue;
    const int64_t bytes = view.stride(i) * size_of(view.dtype());
    if (bytes < 0) f.first += bytes * (view.size(i) - 1);
    if (bytes == 0) {
      f.shares_itself = true;
    } else {
      f.steps[static_cast<size_t>(f.num_steps++)] = {std::abs(bytes), view.size(i)};
    }
  }
  std::sort(f.steps.begin(), f.steps.begin() + f.num_steps,
            [](const Footprint::Step& a, const Footprint::Step& b) { return a.bytes > b.bytes; });
  for (int i = f.num_steps - 1; i >= 0; --i) {
    if (f.steps[static_cast<size_t>(i)].bytes < extent_from(f, i + 1)) f.shares_itself = true;
  }
  while (f.num_steps > 0 && f.steps[static_cast<size_t>(f.num_steps - 1)].bytes <= f.run) {
    const auto& innermost = f.steps[static_cast<size_t>(f.num_steps - 1)];
    f.run += innermost.bytes * (innermost.times - 1);
    --f.num_steps;
  }
  return f;
}

bool overlap(const Footprint& a, const Footprint& b) {
  if (a.run == 0 || b.run == 0) return false;
  int visits = kMaxVisits;
  return meets(a, 0, b, 0, a.first - b.first, &visits);
}

}  // namespace tilewise
