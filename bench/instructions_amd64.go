// SPDX-License-Identifier: Apache-2.0

package main

// instructionsOfLoop is how many each of the loops below takes to go round.
const instructionsOfLoop = 5

// Both take the same number of instructions, and on every real CPU a division takes longer.
func runAdditions(loops int64)
func runDivisions(loops int64)
