// Tables, JSON and progress.
#include "tools/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace tilewise::tools {
namespace {

constexpr size_t kColumns = 9;
using Cells = std::array<std::string, kColumns>;

constexpr std::array<bool, kColumns> kRightAligned = {false, false, false, false, true,
                                                      true,  true,  true,  true};

// Results that must be equal have no bound.
bool has_bound(const reference::Comparison& c) { return c.bound_at_worst > 0; }

double error_of(const reference::Comparison& c) { return c.worst_ratio * c.bound_at_worst; }

Cells cells_of(const Row& row) {
  const reference::Comparison& c = row.comparison;
  Cells cells = {row.op, row.records, row.shape, row.kernel};
  if (has_bound(c)) {
    cells[4] = fmt::format("{:.2e}", error_of(c));
    cells[5] = fmt::format("{:.2e}", c.bound_at_worst);
    cells[6] = fmt::format("{:.3f}{}", c.worst_ratio, c.ok ? "" : " BROKEN");
  } else {
    cells[4] = c.ok ? "0" : "wrong";
    cells[5] = "exact";
    cells[6] = c.ok ? "0" : "BROKEN";
  }
  cells[7] = fmt::format("{:.2f}", row.milliseconds);
  cells[8] = fmt::format("{:.1f} {}", row.rate, row.unit);
  return cells;
}

}  // namespace

std::string to_table(const std::vector<Row>& rows) {
  std::vector<Cells> lines = {
      {"operator", "records", "shape", "kernel", "error", "bound", "error/bound", "ms", "rate"}};
  for (const Row& row : rows) lines.push_back(cells_of(row));
  std::array<size_t, kColumns> widths{};
  for (const Cells& cells : lines) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const Cells& cells : lines) {
    std::string line;
    for (size_t i = 0; i < kColumns; ++i) {
      line += kRightAligned[i] ? fmt::format("{:>{}}  ", cells[i], widths[i])
                               : fmt::format("{:<{}}  ", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (&cells == &lines.front()) text += std::string(line.size(), '-') + "\n";
  }
  return text;
}

nlohmann::json to_json(const std::vector<Row>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    const reference::Comparison& c = row.comparison;
    nlohmann::json entry = {{"operator", row.op}, {"records", row.records},
                            {"shape", row.shape}, {"kernel", row.kernel},
                            {"ok", c.ok},         {"milliseconds", row.milliseconds},
                            {"rate", row.rate},   {"unit", row.unit}};
    if (has_bound(c)) {
      entry["error"] = error_of(c);
      entry["bound"] = c.bound_at_worst;
      entry["error_to_bound"] = c.worst_ratio;
    }
    if (!c.ok) entry["where"] = c.where;
    list.push_back(std::move(entry));
  }
  return list;
}

Progress::Progress(int steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::step(const std::string& what) {
  ++done_;
  if (!terminal_) {
    std::fputs(fmt::format("[{}/{}] {}\n", done_, steps_, what).c_str(), stderr);
    return;
  }
  constexpr int kWidth = 24;
  const int filled = std::min(kWidth, kWidth * done_ / std::max(1, steps_));
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kWidth - filled), '.');
  std::fputs(fmt::format("\r\033[K[{}] {}/{} {}", bar, done_, steps_, what.substr(0, 90)).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace tilewise::tools
