// Standard normal numbers from the state of torch's CPU generator: those of normal_ in float32, bit for bit.
//
// normal_ fills a tensor of n >= 16 numbers in two passes:
//
//     uniform   u_i = (word_i mod 2^24) / 2^24, words of the Mersenne Twister MT19937 in order
//     normal    in each group of 16, for j < 8: r = sqrt(-2 log(1 - u_j)), angle = 2 pi u_{j+8},
//               w_j = r cos(angle), w_{j+8} = r sin(angle)                                  (Box and Muller)
//
// and if 16 does not divide n, the last 16 numbers are drawn again. Here the twist, the tempering and both passes are
// loops without branches, which a compiler turns into vector instructions.
//
// The bits are the same because logarithm, sine and cosine take the same steps as torch's for AVX2 with FMA: the
// polynomials of the Cephes library, and a product and a sum are one operation (fma) in the same places.
//
// Matsumoto and Nishimura (1998), Mersenne Twister; Moshier (1984 to 1992), Cephes Mathematical Library.


#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int WORDS = 624, SHIFT = 397, GROUP = 16, PART = 2048;

// What get_state() hands out, up to the words; torch keeps each of them in 64 bits.
struct Kept {
    uint64_t seed;
    int32_t left, seeded;
    uint64_t next;
    uint64_t words[WORDS];
};

inline uint32_t mixed(uint32_t word, uint32_t after) {
    const uint32_t both = (word & 0x80000000u) | (after & 0x7fffffffu);
    return (both >> 1) ^ ((0u - (after & 1u)) & 0x9908b0dfu);
}

inline float uniform(uint32_t word) {
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    word ^= word >> 18;
    return static_cast<float>(static_cast<int32_t>(word & 0xffffffu)) * 0x1p-24f;
}

struct Twister {
    uint32_t words[WORDS];
    int32_t left, next;

    explicit Twister(const Kept& kept) : left(kept.left), next(static_cast<int32_t>(kept.next)) {
        for (int i = 0; i < WORDS; ++i) words[i] = static_cast<uint32_t>(kept.words[i]);
    }

    void keep(Kept& kept) const {
        kept.left = left;
        kept.next = static_cast<uint64_t>(next);
        for (int i = 0; i < WORDS; ++i) kept.words[i] = words[i];
    }

    void twist() {
        uint32_t* w = words;
#pragma omp simd safelen(16)
        for (int i = 0; i < WORDS - SHIFT; ++i) w[i] = w[i + SHIFT] ^ mixed(w[i], w[i + 1]);
#pragma omp simd safelen(16)
        for (int i = WORDS - SHIFT; i < WORDS - 1; ++i) w[i] = w[i + SHIFT - WORDS] ^ mixed(w[i], w[i + 1]);
        w[WORDS - 1] = w[SHIFT - 1] ^ mixed(w[WORDS - 1], w[0]);
        left = WORDS + 1;
        next = 0;
    }

    void fill(float* out, int64_t count) {
        while (count > 0) {
            if (left == 1) twist();
            const int some = static_cast<int>(std::min<int64_t>(count, left - 1));
            const uint32_t* from = words + next;
#pragma omp simd
            for (int j = 0; j < some; ++j) out[j] = uniform(from[j]);
            out += some;
            count -= some;
            next += some;
            left -= some;
        }
    }
};

inline float from_bits(int32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline int32_t to_bits(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

// log(u) for 2^-24 <= u <= 1: u = m 2^e with m in [sqrt(1/2), sqrt(2)), a polynomial in m - 1.
inline float logarithm(float u) {
    const int32_t bits = to_bits(u);
    const float half = from_bits((bits & 0x007fffff) | 0x3f000000);  // in [1/2, 1)
    const bool low = half < 0.707106781186547524f;
    const float e = static_cast<float>((bits >> 23) - 0x7e) - (low ? 1.0f : 0.0f);
    const float x = (half - 1.0f) + (low ? half : 0.0f), square = x * x;
    float y = 7.0376836292e-2f;
    y = std::fma(y, x, -1.1514610310e-1f);
    y = std::fma(y, x, 1.1676998740e-1f);
    y = std::fma(y, x, -1.2420140846e-1f);
    y = std::fma(y, x, 1.4249322787e-1f);
    y = std::fma(y, x, -1.6668057665e-1f);
    y = std::fma(y, x, 2.0000714765e-1f);
    y = std::fma(y, x, -2.4999993993e-1f);
    y = std::fma(y, x, 3.3333331174e-1f);
    y = std::fma(y * x, square, e * -2.12194440e-4f);
    y = std::fma(square, -0.5f, y);
    return std::fma(e, 0.693359375f, x + y);
}

// The second pass over one group of 16 uniform numbers. The angle is taken modulo pi / 4 in three parts.
inline void normal(float* w) {
#pragma omp simd
    for (int j = 0; j < GROUP / 2; ++j) {
        const float radius = std::sqrt(-2.0f * logarithm(1.0f - w[j]));
        const float angle = 6.283185307179586f * w[j + GROUP / 2];
        const int32_t octant = (static_cast<int32_t>(angle * 1.27323954473516f) + 1) & ~1;
        const float y = static_cast<float>(octant);
        float x = std::fma(y, -0.78515625f, angle);
        x = std::fma(y, -2.4187564849853515625e-4f, x);
        x = std::fma(y, -3.77489497744594108e-8f, x);
        const float square = x * x;
        float c = 2.443315711809948e-5f;
        c = std::fma(c, square, -1.388731625493765e-3f);
        c = std::fma(c, square, 4.166664568298827e-2f);
        c = std::fma(c * square, square, square * -0.5f) + 1.0f;
        float s = -1.9515295891e-4f;
        s = std::fma(s, square, 8.3321608736e-3f);
        s = std::fma(s, square, -1.6666654611e-1f);
        s = std::fma(s * square, x, x);
        const bool swapped = octant & 2;
        const int32_t up = to_bits(swapped ? c : s) ^ ((octant & 4) << 29);
        const int32_t across = to_bits(swapped ? s : c) ^ ((~(octant - 2) & 4) << 29);
        w[j] = radius * from_bits(across) + 0.0f;
        w[j + GROUP / 2] = radius * from_bits(up) + 0.0f;
    }
}

}  // namespace

// ``pages`` times ``numbers`` >= 16 normal numbers, one after the other in memory; ``state`` is moved on.
extern "C" void fill_normal(uint8_t* state, float* out, int64_t numbers, int64_t pages) {
    Kept& kept = *reinterpret_cast<Kept*>(state);
    Twister twister(kept);
    for (int64_t page = 0; page < pages; ++page, out += numbers) {
        for (int64_t done = 0; done < numbers; done += PART) {
            const int64_t some = std::min<int64_t>(numbers - done, PART);
            twister.fill(out + done, some);
            for (int64_t group = 0; group + GROUP <= some; group += GROUP) normal(out + done + group);
        }
        if (numbers % GROUP) {
            twister.fill(out + numbers - GROUP, GROUP);
            normal(out + numbers - GROUP);
        }
    }
    twister.keep(kept);
}
