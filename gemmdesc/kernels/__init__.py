"""The Triton family: one file per accumulation structure, and a chooser, a launcher and configs beside them.

``card`` says which arithmetic a card's matrix instructions realise, ``choose`` maps a descriptor to a kernel without
touching a GPU, ``launch`` runs the choice, ``variants`` bounds and counts what can be compiled.  The kernels are in
``chain``, ``grouped_chain``, ``merge`` and ``repack``, their shared pieces in ``tile``.  ``recording`` notes what a
choice launches, ``prepared`` launches it again through the driver.  The specification is ``docs/kernels.md``.
"""
