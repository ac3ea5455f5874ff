// SPDX-License-Identifier: Apache-2.0

package maglev

import (
	"fmt"
	"math/big"
	"slices"
)

// DefaultSize keeps 163 equal backends within 1 % of their share.
const DefaultSize = 16381

// Sizes are suggested sizes: the largest prime numbers below powers of two.
var Sizes = []uint32{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071, 262139, 524287, 1048573}

// CheckSize returns an error that suggests valid sizes if size is not valid for a table.
func CheckSize(size uint32) error {
	least, most := Sizes[0], Sizes[len(Sizes)-1]
	if size < least || size > most {
		return fmt.Errorf("%d slots: choose a prime number from %d to %d, such as %d", size, least, most, DefaultSize)
	}
	if isPrime(size) {
		return nil
	}
	below, above := size, size
	for !isPrime(below) {
		below--
	}
	for !isPrime(above) {
		above++
	}
	at, _ := slices.BinarySearch(Sizes, size)
	return fmt.Errorf("%d slots: not a prime number; the nearest are %d and %d, and common sizes are %d and %d",
		size, below, above, Sizes[at-1], Sizes[at])
}

// isPrime is exact: ProbablyPrime does not err below 1 << 64.
func isPrime(n uint32) bool { return big.NewInt(int64(n)).ProbablyPrime(0) }
