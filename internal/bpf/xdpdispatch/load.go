// SPDX-License-Identifier: Apache-2.0

package xdpdispatch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// constantsName is the name of the map with the constants.
const constantsName = ".rodata"

// dispatcherMetadata is the section of the BTF that holds the version. Libxdp reads it from the BTF of the
// loaded program.
const dispatcherMetadata = "xdp_metadata"

// loadDispatcher loads bpf/xdp_dispatcher.bpf.c. Package ebpf loads a program with the BTF of only its
// functions, so this one is loaded without it.
func loadDispatcher(config dispatcherConfig) (*ebpf.Program, error) {
	spec, err := LoadXDPDispatcher()
	if err != nil {
		return nil, err
	}
	spec.Maps[constantsName].Contents = []ebpf.MapKV{{Key: uint32(0), Value: config}} // there is no other constant
	constants, err := ebpf.NewMap(spec.Maps[constantsName])
	if err != nil {
		return nil, fmt.Errorf("the dispatcher's constants: %w", err)
	}
	defer constants.Close()
	program := spec.Programs[XDPDispatcherProgXdpDispatcher].Copy()
	if err := program.Instructions.AssociateMap(constantsName, constants); err != nil {
		return nil, err
	}
	if config.IsXdpFrags != 0 {
		program.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	return loadWithMetadata(program, spec.Types)
}

// progLoadAttr is union bpf_attr of BPF_PROG_LOAD up to the line infos
// (include/uapi/linux/bpf.h).
type progLoadAttr struct {
	progType, insnCount         uint32
	insns, license              unsafe.Pointer
	logLevel, logSize           uint32
	logBuffer                   unsafe.Pointer
	kernelVersion, flags        uint32
	name                        [unix.BPF_OBJ_NAME_LEN]byte
	device, expectedAttachType  uint32
	btf, funcInfoSize           uint32
	funcInfos                   unsafe.Pointer
	funcInfoCount, lineInfoSize uint32
	lineInfos                   unsafe.Pointer
	lineInfoCount, attachBTFID  uint32
}

func loadWithMetadata(p *ebpf.ProgramSpec, types *btf.Spec) (*ebpf.Program, error) {
	var metadata *btf.Datasec
	if err := types.TypeByName(dispatcherMetadata, &metadata); err != nil {
		return nil, err
	}
	var b btf.Builder
	if _, err := b.Add(metadata); err != nil {
		return nil, err
	}
	funcs, lines, err := btf.MarshalExtInfos(p.Instructions, &b)
	if err != nil {
		return nil, err
	}
	handle, err := btf.NewHandle(&b)
	if err != nil {
		return nil, fmt.Errorf("load the dispatcher's types: %w", err)
	}
	defer handle.Close()
	var code bytes.Buffer
	if err := p.Instructions.Marshal(&code, binary.LittleEndian); err != nil {
		return nil, err
	}
	license := append([]byte(p.License), 0)
	attr := progLoadAttr{
		progType: uint32(p.Type), expectedAttachType: uint32(p.AttachType), flags: p.Flags, license: unsafe.Pointer(&license[0]),
		insns: unsafe.Pointer(&code.Bytes()[0]), insnCount: uint32(code.Len() / 8),
		btf:       uint32(handle.FD()),
		funcInfos: unsafe.Pointer(&funcs[0]), funcInfoSize: btf.FuncInfoSize, funcInfoCount: uint32(len(funcs)) / btf.FuncInfoSize,
		lineInfos: unsafe.Pointer(&lines[0]), lineInfoSize: btf.LineInfoSize, lineInfoCount: uint32(len(lines)) / btf.LineInfoSize,
	}
	copy(attr.name[:len(attr.name)-1], p.Name)
	log := make([]byte, 1<<16)
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 { // again, with a log
		attr.logLevel, attr.logBuffer, attr.logSize = 1, unsafe.Pointer(&log[0]), uint32(len(log))
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}
	runtime.KeepAlive(p)
	if errno != 0 {
		return nil, fmt.Errorf("load the dispatcher: %w: %s", errno, unix.ByteSliceToString(log))
	}
	return ebpf.NewProgramFromFD(int(fd))
}
