// The records of the paged KV cache: how the bytes of one token's K (and V) are laid out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tilewise {

/// How a cached token is stored; docs/kv-formats.md describes every record. The ids are part of the ABI:
/// they never change, new records are appended.
enum class Record : int32_t {
  kAuto = -1,  ///< to be inferred from the cache tensor: its dtype (bf16) or `infer_record`
  kV32Fp8 = 0,
  kV32NopeFp8 = 1,
  kV4Fp8 = 2,
  kV41Fp8 = 3,
  kV41Fp4 = 4,
  kV41Fp8Row = 5,
  kV41Fp4Row = 6,
  kV41MainFp4 = 7,
  kV32Nvfp4 = 8,
  kBf16 = 9,
};

/// All records in the order of their ids, without kAuto.
std::span<const Record> all_records();

/// The name used in options and messages, such as "v32_fp8". kAuto gives "auto", a value that is no record
/// "unknown". Never null.
const char* record_name(Record record);

/// The record of that name, or nothing. "auto" is no record's name.
std::optional<Record> record_from_name(std::string_view name);

/// The head size d_qk that the record holds, in elements; 0 for kBf16 (which holds 576 or 512) and for a
/// value that is no record.
int64_t record_dim(Record record);

/// Bytes of one token, over all planes, for head size `d` in elements. 0 if the record does not hold that
/// head size (so a caller compares once) and for a value that is no record.
int64_t record_bytes(Record record, int64_t d);

/// The record of an 8-bit cache whose last dimension is `bytes`, for head size `d`; nothing if there is none.
/// Where several records have that size, one of them is what callers mean and the others must be named.
/// A bf16 cache is known by its dtype and never found here.
std::optional<Record> infer_record(int64_t bytes, int64_t d);

/// Whether a sparse operator takes a main cache of record `main` together with an extra cache of record
/// `extra`.
bool record_pair_allowed(Record main, Record extra);

}  // namespace tilewise
