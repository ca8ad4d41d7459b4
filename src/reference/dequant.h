// The oracle's own reading and writing of cache records, from its own table of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tilewise/kv_format.h"
#include "tilewise/ops/kv_cache.h"
#include "tilewise/tensor.h"

namespace tilewise::reference {

/// A cache tensor [num_blocks, page, 1, bytes] as bytes; contiguous inside a page.
struct Pages {
  uint8_t* data = nullptr;
  int64_t num_blocks = 0;
  int64_t page = 0;          ///< tokens
  int64_t block_stride = 0;  ///< bytes
  int64_t token_bytes = 0;

  int64_t slots() const { return num_blocks * page; }
  uint8_t* block(int64_t slot) const { return data + slot / page * block_stride; }
};

/// The bytes behind a cache tensor of any dtype that a cache may have.
Pages pages_of(const TensorView& cache);

/// `record`, or where that is kAuto the one that the tensor's dtype and last dimension mean.
Record resolve_record(Record record, const TensorView& cache);

/// Reads the token of a slot in [0, slots()): d bfloat16 bit patterns. A NaN that dequantising makes is
/// 0x7FC0.
std::vector<uint16_t> decode_token(Record record, const Pages& pages, int64_t slot);
/// The same into memory of the caller.
void decode_token(Record record, const Pages& pages, int64_t slot, uint16_t* out);

/// Writes one token, d bfloat16 bit patterns, into a slot in [0, slots()).
void encode_token(Record record, const uint16_t* x, const Pages& pages, int64_t slot);

/// The memory of the output after quantize_kv, given what it held: `old` begins at the first element.
std::vector<uint8_t> after_quantize(const QuantizeKvArgs& args, std::span<const uint8_t> old);
/// The memory of the cache after append_kv, given what it held: `old` begins at the first element.
std::vector<uint8_t> after_append(const AppendKvArgs& args, std::span<const uint8_t> old);
/// The output of dequantize_kv, bfloat16 bit patterns [num_blocks * page, d].
std::vector<uint16_t> dequantized(const DequantizeKvArgs& args);

}  // namespace tilewise::reference
