#include "cuda/portable/config.h"

#include <algorithm>

#include "cuda/portable/shared_layout.h"
#include "formats/record.h"

namespace tilewise::cuda {
namespace {

int32_t token_bytes_of(const CacheShape& cache, int64_t d) {
  if (!cache.present) return 0;
  if (cache.record == Record::kBf16) return static_cast<int32_t>(d * size_of(cache.dtype));
  return formats::token_bytes(formats::record_spec(cache.record, static_cast<int32_t>(d)));
}

}  // namespace

bool decodes(const ForwardShape& shape) {
  return shape.main.record != Record::kBf16 || shape.main.dtype == DType::kE4M3;
}

int32_t raw_row_bytes(const ForwardShape& shape) {
  constexpr int32_t kPiece = 16;
  const int32_t bytes =
      std::max(token_bytes_of(shape.main, shape.d_qk), token_bytes_of(shape.extra, shape.d_qk));
  const int32_t pieces = (bytes + kPiece - 1) / kPiece;
  return (pieces + (pieces % 2 == 0 ? 1 : 0)) * kPiece;
}

int32_t shared_bytes(const ForwardConfig& config, const ForwardShape& shape) {
  const bool raw = decodes(shape);
  return shared_layout(config, static_cast<int32_t>(shape.d_qk), raw, raw ? raw_row_bytes(shape) : 0).total;
}

int64_t blocks_at_once(const ForwardConfig& config, const ForwardShape& shape, const Device& device) {
  // A multiprocessor has as much shared memory as a block may have, and what each block costs on top.
  constexpr int32_t kOfBlock = 1024;
  constexpr int32_t kMostWarps = 8;  // by their registers
  const int32_t fit = (device.cuda_shared_bytes + kOfBlock) / (shared_bytes(config, shape) + kOfBlock);
  return int64_t{device.cuda_sms} * std::clamp(fit, 1, kMostWarps / config.warps);
}

PieceCosts piece_costs(const ForwardConfig& config, const ForwardShape& shape) {
  const int64_t products = int64_t{config.tile_rows} * config.tile_keys * 7 / 5;
  return {.tile = 1'500 + products + (decodes(shape) ? 80 * config.tile_keys : 0),
          .merged_piece = config.tile_rows};
}

std::optional<int32_t> choose_config(const ForwardShape& shape, const Device& device) {
  const int64_t rows = query_tiles(shape, 1).rows_of_group();
  // As few rows as hold them all, otherwise the most that fit.
  std::optional<int32_t> chosen;
  for (int32_t i = 0; i < kNumForwardConfigs; ++i) {
    const ForwardConfig& config = kForwardConfigs[i];
    if (shared_bytes(config, shape) > device.cuda_shared_bytes) continue;
    if (chosen && (kForwardConfigs[*chosen].tile_rows == config.tile_rows || config.tile_rows < rows))
      continue;
    chosen = i;
  }
  return chosen;
}

}  // namespace tilewise::cuda
