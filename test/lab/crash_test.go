// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"errors"
	"strconv"
	"testing"
)

// Killed after any step of its making, a lab is made anew by the next Up, and
// removed by Down.
func TestUpKilledAfterEachStep(t *testing.T) {
	name := newName(t)
	steps := 0
	for ; ; steps++ {
		err := part(t, partUp, name, strconv.Itoa(steps+1)).Run()
		if err == nil {
			break // it ended before that step
		}
		if left := leftovers(t, name); left == nil {
			t.Fatalf("step %d: nothing is there after the kill (%v): the test shows nothing", steps+1, err)
		}
		if _, err := Open(name); !errors.Is(err, ErrIncomplete) {
			t.Errorf("step %d: Open: %v, want ErrIncomplete", steps+1, err)
		}
		if steps%2 == 0 { // every other one is taken down, the others made anew
			if err := Down(name); err != nil {
				t.Fatalf("step %d: %v", steps+1, err)
			}
			wantNothingLeft(t, name)
			continue
		}
		l, err := Up(Config{Name: name, Temporary: true})
		if err != nil || l.Reused {
			t.Fatalf("step %d: Up: %v, want a new lab", steps+1, err)
		}
		if err := l.Down(); err != nil {
			t.Fatal(err)
		}
		wantNothingLeft(t, name)
	}
	if steps < 20 {
		t.Errorf("only %d steps", steps)
	}
	if err := Down(name); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, name)
}

// A temporary lab outlives the kill of its owner, but the processes that it
// started do not, and the next temporary lab removes it.
func TestSweepRemovesLabsOfTheDead(t *testing.T) {
	name, lasting := newName(t), newName(t)
	owner := part(t, partOwner, name)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.StdinPipe(); err != nil { // it waits for its end
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the owner did not get ready: %q (%v)", line, err)
	}
	// Of a lab that is not temporary nobody's end is the end.
	if err := part(t, partUp, lasting, "0").Run(); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	l, err := Open(name)
	if err != nil {
		t.Fatalf("Sweep took a living owner's lab: %v", err)
	}
	// Other tests of this machine sweep, too: not before it has been looked at.
	lock, err := lockLab(name, false, true)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	eventually(t, "the processes of the killed owner end", func() bool {
		pids, err := cgroupPIDs(l.CgroupRoot)
		if err != nil {
			t.Fatal(err)
		}
		return len(pids) == 0
	})
	if _, err := Open(name); err != nil {
		t.Errorf("the lab went with its owner (%v): the test shows nothing", err)
	}
	lock.Close()
	New(t)
	eventually(t, "nothing of the lab is left", func() bool { return leftovers(t, name) == nil }) // whoever sweeps
	if _, err := Open(lasting); err != nil {
		t.Errorf("Sweep took a lab that is not temporary: %v", err)
	}
}
