// SPDX-License-Identifier: Apache-2.0

package instructions

// instructionsOfLoop is the number of instructions in each of the loops below.
const instructionsOfLoop = 5

// Both execute the same number of instructions, and on every real CPU a division takes longer.
func runAdditions(loops int64)
func runDivisions(loops int64)
