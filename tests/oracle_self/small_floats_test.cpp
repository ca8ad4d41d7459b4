// The oracle's 8-bit and 4-bit floats against listed values.
#include "reference/small_floats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::ceil_log2;
using reference::E2m1;
using reference::E4m3;
using reference::to_e4m3;

TEST(OracleFloats, E2m1HasItsEightMagnitudes) {
  const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(E2m1::get().value(code), magnitudes[code]);
    EXPECT_EQ(E2m1::get().value(code + 8), -magnitudes[code]);
  }
  EXPECT_TRUE(std::signbit(E2m1::get().value(8)));
}

TEST(OracleFloats, E4m3Values) {
  const E4m3& e4m3 = E4m3::get();
  EXPECT_EQ(e4m3.value(0x00), 0);
  EXPECT_EQ(e4m3.value(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3.value(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(e4m3.value(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3.value(0x38), 1);
  EXPECT_EQ(e4m3.value(0x3D), 1.625f);
  EXPECT_EQ(e4m3.value(0x7E), 448);
  EXPECT_EQ(e4m3.value(0xC4), -3);
  EXPECT_TRUE(std::signbit(e4m3.value(0x80)));
  EXPECT_TRUE(std::isnan(e4m3.value(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3.value(0xFF)));
}

TEST(OracleFloats, E4m3RoundsToNearestEvenAndSaturates) {
  EXPECT_EQ(to_e4m3(1.0), 0x38);
  EXPECT_EQ(to_e4m3(1.0625), 0x38);  // between 0x38 and 0x39
  EXPECT_EQ(to_e4m3(1.0626), 0x39);
  EXPECT_EQ(to_e4m3(1.1875), 0x3A);  // between 0x39 and 0x3A
  EXPECT_EQ(to_e4m3(1.1874), 0x39);
  EXPECT_EQ(to_e4m3(1.9999), 0x40);
  EXPECT_EQ(to_e4m3(0x1p-10), 0x00);  // half the smallest
  EXPECT_EQ(to_e4m3(0x1.01p-10), 0x01);
  EXPECT_EQ(to_e4m3(-0x1p-10), 0x80);
  EXPECT_EQ(to_e4m3(-0.0), 0x80);
  EXPECT_EQ(to_e4m3(447), 0x7E);
  EXPECT_EQ(to_e4m3(1e30), 0x7E);
  EXPECT_EQ(to_e4m3(kInf), 0x7E);
  EXPECT_EQ(to_e4m3(-kInf), 0xFE);
  EXPECT_EQ(to_e4m3(-std::nan("")), 0x7F);
}

TEST(OracleFloats, E2m1RoundsToNearestEvenAndSaturates) {
  const E2m1& e2m1 = E2m1::get();
  const double ties[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  const int codes[] = {0, 2, 2, 4, 4, 6, 6};
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(e2m1.nearest(ties[i]), codes[i]);
    EXPECT_EQ(e2m1.nearest(ties[i] * 0.999), static_cast<int>(i));
    EXPECT_EQ(e2m1.nearest(ties[i] * 1.001), static_cast<int>(i) + 1);
  }
  EXPECT_EQ(e2m1.nearest(1000), 7);
}

TEST(OracleFloats, RoundingUp) {
  EXPECT_EQ(E4m3::get().not_below(1.0), 0x38);
  EXPECT_EQ(E4m3::get().not_below(1.0001), 0x39);
  EXPECT_EQ(E4m3::get().not_below(0), 0);
  EXPECT_EQ(E4m3::get().not_below(448), 0x7E);
}

TEST(OracleFloats, StepsBetweenNeighbours) {
  EXPECT_EQ(E4m3::get().step(0), 0x1p-9);
  EXPECT_EQ(E4m3::get().step(1.1), 0.125);
  EXPECT_EQ(E4m3::get().step(1.0), 0.0625);
  EXPECT_EQ(E4m3::get().step(448), 32);
}

TEST(OracleFloats, CeilLog2) {
  EXPECT_EQ(ceil_log2(1), 0);
  EXPECT_EQ(ceil_log2(std::nextafter(1.0, 2.0)), 1);
  EXPECT_EQ(ceil_log2(std::nextafter(1.0, 0.0)), 0);
  EXPECT_EQ(ceil_log2(0x1p-127), -127);
  EXPECT_EQ(ceil_log2(3), 2);
}

}  // namespace
}  // namespace tilewise::oracle_self
